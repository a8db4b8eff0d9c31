"""How the outputs of a plan are arranged, as plain data: tuples, lists and dictionaries of numbered tensors.

PyTorch writes such structures, too (``treespec_dumps``), but reading them imports modules that the text names.
"""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as shown
from typing import Any

from torch.utils import _pytree as pytree

MAX_DEPTH = 100
Structure = int | list[Any]
"""The number of a tensor, or ``["tuple" | "list", structure, …]`` or ``["dict", [key, structure], …]``."""


def structure_of(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a value, and its structure. What is no list, tuple or dictionary becomes the nearest one."""
    leaves: list[Any] = []

    def walk(node: Any) -> Structure:
        children, context = _children(node)
        if children is None:
            leaves.append(node)
            return len(leaves) - 1
        if isinstance(context, list):
            return ["dict", *([key, walk(child)] for key, child in zip(context, children, strict=True))]
        return [context, *map(walk, children)]

    return leaves, walk(value)


def _children(node: Any) -> tuple[list[Any] | None, Any]:
    """What a node contains, and "tuple", "list" or the keys of a dictionary; None for a leaf."""
    kind = type(node)
    if isinstance(node, dict) and all(isinstance(key, (str, int)) for key in node):
        return list(node.values()), list(node)
    if kind is list:
        return node, "list"
    if isinstance(node, tuple):
        return list(node), "tuple"
    if kind in pytree.SUPPORTED_NODES:
        return list(pytree.SUPPORTED_NODES[kind].flatten_fn(node)[0]), "tuple"
    return None, None


def arranged(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The leaves in that structure."""
    if isinstance(structure, int):
        return leaves[structure]
    kind, *parts = structure
    if kind == "dict":
        return {key: arranged(part, leaves) for key, part in parts}
    values = [arranged(part, leaves) for part in parts]
    return tuple(values) if kind == "tuple" else values


def leaves_of(structure: Any, depth: int = 0) -> list[int]:
    """The numbers in a structure. ValueError for what is none."""
    if type(structure) is int:
        return [structure]
    if depth > MAX_DEPTH:
        raise ValueError(f"its outputs are arranged in more than {MAX_DEPTH} levels")
    if not isinstance(structure, (list, tuple)) or not structure:
        raise ValueError(f"{shown(structure)} is no structure of tensors")
    kind, *parts = structure
    if kind == "dict":
        keys = [_key(part) for part in parts]
        if len(set(keys)) < len(keys):
            raise ValueError(f"a dictionary of tensors has one of the keys {shown(keys)} twice")
        parts = [part[1] for part in parts]
    elif kind not in ("tuple", "list"):
        raise ValueError(f"{shown(kind)} is no kind of structure")
    return [number for part in parts for number in leaves_of(part, depth + 1)]


def _key(part: Any) -> str | int:
    if not isinstance(part, (list, tuple)) or len(part) != 2 or not isinstance(part[0], (str, int)):
        raise ValueError(f"{shown(part)} is no entry of a dictionary")
    return part[0]
