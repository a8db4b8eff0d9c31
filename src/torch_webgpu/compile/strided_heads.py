"""Attention's operands as parts of what they were computed as, without the copies between.

Programs bring heads into an order of their own before attention: ``nn.MultiheadAttention`` makes a packed product of
queries, keys and values contiguous, one after the other, and then merges heads with the batch. Kernels of attention
read lines at any distance. So a chain of views and copies from a tensor to an operand is followed by its indices: a
dimension of the operand is a product of parts of dimensions, and where each is one part, the operand is one view.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .in_place import is_visible
from .matching import ATTENTION, VIEWS, aten
from .private import is_webgpu


class Factor(NamedTuple):
    """A part of a dimension: so many steps of so many elements."""

    size: int
    stride: int


Dim = list[Factor]
"""A dimension as its parts, the outermost first."""

PARTS = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
"""What gives a list of views."""
SLICE = (0, 0, None, 1)
"""Arguments of a slice, where there are none."""
FOLLOWED = {
    *VIEWS,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.clone.default,
}


class _NoViewError(Exception):
    """The elements of a dimension are no steps of one length."""


class View(NamedTuple):
    """A part of a tensor's storage."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Chain(NamedTuple):
    """Views and copies that follow each other, the last one first, from ``base`` on."""

    base: Node
    nodes: tuple[Node, ...]


def heads(gm: GraphModule) -> dict[Node, Chain]:
    """The operands of attention that are copies, or views of such, of a result of a functional graph of ATen operators
    with static shapes; but those that a program can see.
    """
    operands = {x for node in gm.graph.nodes if node.target in ATTENTION for x in node.all_input_nodes}
    chains = {operand: chain_to(operand) for operand in operands if not is_visible(operand)}
    return {operand: chain for operand, chain in chains.items() if chain is not None}


def chain_to(operand: Node) -> Chain | None:
    """How ``operand`` comes from a result of the graph; None if nothing is copied on the way."""
    nodes, base = [], operand
    while (source := source_of(base)) is not None:
        nodes.append(base)
        base = source
    value = base.meta.get("val")
    if base.op != "call_function" or not isinstance(value, torch.Tensor) or not is_webgpu(value):
        return None
    if value.storage_offset() or all(node.target is not aten.clone.default for node in nodes):
        return None
    return Chain(base, tuple(nodes)) if operand.meta["val"].numel() else None


def as_view(chain: Chain, value: torch.Tensor) -> View | None:
    """The end of a chain that starts with ``value`` as one view of this; None if it is none."""
    dims = [[Factor(n, s)] if n != 1 else [] for n, s in zip(value.shape, value.stride(), strict=True)]
    offset = 0
    try:
        for node in reversed(chain.nodes):
            dims, step = after(node, dims)
            offset += step
        factors = [merged(dim) for dim in dims]
    except _NoViewError:
        return None
    if not factors or factors[-1].stride != 1:
        return None
    # of a dimension with one element, what kernels that move runs of elements can divide
    end = max(factor.size * factor.stride for factor in factors)
    strides = tuple([factor.stride if factor.size > 1 else end for factor in factors])
    return View(tuple([factor.size for factor in factors]), strides, offset)


def source_of(node: Node) -> Node | None:
    """What a node is a view or a copy of; None if it is none of those that are followed."""
    source: Any = node
    if node.target is operator.getitem and getattr(node.args[0], "target", None) in PARTS:
        source = node.args[0]
    elif node.target not in FOLLOWED:
        return None
    return source.args[0]


def after(node: Node, dims: list[Dim]) -> tuple[list[Dim], int]:
    """The dimensions of a view or copy of a tensor with ``dims``, and how many elements later it starts."""
    target = node.target
    args: Any = node.args[1:]
    if target is aten.clone.default:
        return dims, 0
    if target in VIEWS:
        return regrouped(dims, node.meta["val"].shape), 0
    if target is aten.permute.default:
        return [dims[d] for d in args[0]], 0
    if target in (aten.transpose.int, aten.t.default):
        one, other = args if args else (0, len(dims) - 1)
        dims = list(dims)
        dims[one], dims[other] = dims[other], dims[one]
        return dims, 0
    if target is aten.unsqueeze.default:
        dim = args[0] % (len(dims) + 1)
        return [*dims[:dim], [], *dims[dim:]], 0
    if target is aten.squeeze.dim:
        dim = args[0] % len(dims)
        return dims if dims[dim] else [*dims[:dim], *dims[dim + 1 :]], 0
    dim, start, stays = part(node)
    dim %= len(dims)
    factor = merged(dims[dim])
    start = min(start % factor.size if start < 0 else start, factor.size)
    size = node.meta["val"].shape[dim] if stays else 1
    kept: list[Dim] = [[Factor(size, factor.stride)] if size > 1 else []] if stays else []
    return [*dims[:dim], *kept, *dims[dim + 1 :]], start * factor.stride


def part(node: Any) -> tuple[int, int, bool]:
    """The dimension of which a node is a part, where that starts, and whether the dimension is still there."""
    if node.target is aten.select.int:
        return node.args[1], node.args[2], False
    if node.target is aten.slice.Tensor:
        steps: Any = (*node.args[1:], *SLICE[len(node.args) - 1 :])
        dim, start, _, step = steps
        if step != 1:
            raise _NoViewError
        return dim, start or 0, True
    parts, index = node.args
    arguments = [*parts.args[1:], *parts.kwargs.values()]
    if parts.target is aten.unbind.int:
        return (arguments or [0])[0], index, False
    sizes, dim = [*arguments, 0][:2]
    return dim, sum(sizes[:index]) if parts.target is aten.split_with_sizes.default else index * sizes, True


def regrouped(dims: list[Dim], shape: Sequence[int]) -> list[Dim]:
    """The dimensions of a tensor that has ``shape`` instead, with the same elements in the same order."""
    left = [factor for dim in dims for factor in dim][::-1]
    groups: list[Dim] = []
    for size in shape:
        group: Dim = []
        while size > 1:
            factor = left.pop()
            if size % factor.size and factor.size % size:
                raise _NoViewError
            if factor.size > size:
                inner = factor.size // size
                left.append(Factor(inner, factor.stride))
                factor = Factor(size, factor.stride * inner)
            group.append(factor)
            size //= factor.size
        groups.append(group)
    return groups


def merged(dim: Dim) -> Factor:
    """A dimension as one part."""
    for outer, inner in pairwise(dim):
        if outer.stride != inner.size * inner.stride:
            raise _NoViewError
    return Factor(prod(factor.size for factor in dim), dim[-1].stride if dim else 1)
