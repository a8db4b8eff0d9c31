"""Products whose rows are brought into another order before, and back into the first one after.

A row of a product follows from one row, so that rows may be multiplied in any order: in that in which they lie.
``nn.MultiheadAttention`` with ``batch_first`` transposes batch and positions, which copies what it multiplies, and
transposes them back. Where weights have gradients the rows are multiplied a second time, and are copied as they were.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node

from .matching import VIEWS, aten
from .private import is_webgpu

OPERAND = {aten.mm.default: 0, aten.addmm.default: 1}
"""Where the rows are among the arguments of a product."""


class Rows(NamedTuple):
    """A product of rows that lie along the first two dimensions of ``source``."""

    product: Node
    source: Node


def products(gm: GraphModule) -> dict[Node, Rows]:
    """The results of such products, with their rows along two dimensions again, of a functional graph of ATen operators
    with static shapes.
    """
    found: dict[Node, Rows] = {}
    for node in gm.graph.nodes:
        if node.target in OPERAND and (source := source_of(node)) is not None:
            outer = source.meta["val"].shape[:2]
            if all(user.target in VIEWS and user.meta["val"].shape[:2] == outer for user in node.users):
                found.update(dict.fromkeys(node.users, Rows(node, source)))
    return found


def source_of(product: Node) -> Node | None:
    """What a product's rows are a view or a copy of, with two dimensions of more than one row."""
    rows = product.args[OPERAND[product.target]]  # type: ignore[index]
    if not isinstance(rows, Node) or rows.target not in VIEWS or not are_multiplied(rows):
        return None
    source = rows.args[0]
    if isinstance(source, Node) and source.target is aten.clone.default:
        if not all(user.target in VIEWS and are_multiplied(user) for user in source.users):
            return None
        source = source.args[0]
    value = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(value, torch.Tensor) or not is_webgpu(value) or value.dim() < 3:
        return None
    bias = product.args[0] if product.target is aten.addmm.default else None
    if isinstance(bias, Node) and prod(bias.meta["val"].shape[:-1]) != 1:
        return None
    both = min(value.shape[:2]) > 1 and prod(value.shape[:2]) == rows.meta["val"].shape[0]
    return source if both else None  # type: ignore[return-value]


def are_multiplied(rows: Node) -> bool:
    """Whether a matrix is the rows of products, and nothing else."""
    return all(user.target in OPERAND and user.args[OPERAND[user.target]] is rows for user in rows.users)


def are_swapped(source: torch.Tensor) -> bool:
    """Whether rows along the first dimension are closer together than along the second."""
    return source.stride(0) < source.stride(1)
