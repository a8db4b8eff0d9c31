"""Sums of parts that lie side by side, each among zeros, as the parts in one tensor.

The gradient of ``x[..., :k]`` is as large as ``x`` and zero beside the part, and autograd adds up those of all parts:
of the two halves that rotary embeddings take, of queries, keys and values in a packed projection. Parts that together
are all of ``x`` are its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .matching import aten, calls, new_call
from .private import is_webgpu

PARTS = (aten.slice_backward.default, aten.select_backward.default)


class Whole(NamedTuple):
    """What parts belong to: the sizes of a tensor, and the dimension along which they lie."""

    sizes: tuple[int, ...]
    dim: int


Range = tuple[int, int]
"""Where a part starts and ends along its dimension."""
Parts = dict[Range, list[Node]]
"""The gradients of each part among zeros; a part that is taken twice has two."""


def apply(gm: GraphModule) -> int:
    """Rewrites sums in a functional graph of ATen operators; how many."""
    count = 0
    for node in reversed(list(gm.graph.nodes)):
        if is_sum(node) and not (len(node.users) == 1 and is_sum(*node.users)):
            count += rewrite(node)
    if count:
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()
    return count


def rewrite(node: Node) -> bool:
    """Adds up the terms of ``node`` with those that are parts of one tensor in one; false if there are none."""
    value = node.meta.get("val")
    terms = list(terms_of(node, value))
    wholes: dict[Whole, Parts] = {}
    for term in terms:
        if is_like(term, value) and (found := part_of(term)) is not None:
            whole, where = found
            wholes.setdefault(whole, {}).setdefault(where, []).append(term)
    joined = {whole: parts for whole, parts in wholes.items() if are_all(whole, sorted(parts))}
    if not joined:
        return False
    replaced = {part for parts in joined.values() for nodes in parts.values() for part in nodes}
    total = [term for term in terms if term not in replaced]
    total += [together(node, whole, parts) for whole, parts in joined.items()]
    node.replace_all_uses_with(added(node, total))
    return True


def terms_of(node: Node, value: object) -> Iterator[Node]:
    """What is added up to ``node``, of the same size and dtype, and to nothing else."""
    for operand in node.args:
        assert isinstance(operand, Node)
        if is_sum(operand) and len(operand.users) == 1 and is_like(operand, value):
            yield from terms_of(operand, value)
        else:
            yield operand


def is_sum(node: Node) -> bool:
    """Whether a node is the sum of two others."""
    return calls(node, aten.add.Tensor) and all(isinstance(operand, Node) for operand in node.args)


def is_like(node: object, value: object) -> bool:
    """Whether a node gives a tensor of this one's shape and dtype."""
    other = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (other.shape, other.dtype, other.device) == (value.shape, value.dtype, value.device)


def part_of(node: Node) -> tuple[Whole, Range] | None:
    """The whole and the part that a term is among zeros; None if it is none, or read by others, too."""
    if not calls(node, *PARTS) or len(node.users) != 1 or not is_webgpu(node.meta.get("val")):
        return None
    arguments: Any = node.args
    _, sizes, dim, start, *rest = arguments
    if not all(isinstance(n, int) for n in (*sizes, dim, start, *rest)):
        return None
    dim %= len(sizes)
    size = sizes[dim]
    end, step = rest or (start + 1 if start != -1 else size, 1)
    first, last = (min(max(n + size if n < 0 else n, 0), size) for n in (start, end))
    return (Whole(tuple(sizes), dim), (first, last)) if step == 1 else None


def are_all(whole: Whole, ranges: list[Range]) -> bool:
    """Whether sorted parts, of which there are some, follow each other from the dimension's start to its end."""
    ends = [0, *(end for _, end in ranges)]
    return len(ranges) > 1 and [start for start, _ in ranges] == ends[:-1] and ends[-1] == whole.sizes[whole.dim]


def together(user: Node, whole: Whole, parts: Parts) -> Node:
    """The gradients of all parts, one after the other."""
    tensors = []
    for _, nodes in sorted(parts.items()):
        gradients = []
        for node in nodes:
            gradient = node.args[0]
            assert isinstance(gradient, Node)
            if node.target is aten.select_backward.default:
                gradient = new_call(user, aten.unsqueeze.default, gradient, whole.dim)
            gradients.append(gradient)
        tensors.append(added(user, gradients))
    return new_call(user, aten.cat.default, tensors, whole.dim)


def added(user: Node, terms: list[Node]) -> Node:
    """The sum of tensors, which ``user`` needs."""
    result, *others = terms
    for term in others:
        result = new_call(user, aten.add.Tensor, result, term)
    return result
