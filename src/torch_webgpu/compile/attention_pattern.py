"""Attention that a program writes out, ``softmax(q @ kᵀ * scale + mask) @ v``: the attention kernels.

PyTorch's own table of such programs (``torch._inductor.fx_passes.fuse_attention``) has a row for each way to write it,
made of Inductor's decompositions, and gives a query that sees nothing zeros. Here the way from one product to the other
is followed operator by operator, and results are the program's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import astuple, replace
from functools import reduce
from math import isfinite, prod
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from torch_webgpu import dtypes
from torch_webgpu.aten.attention import sdpa
from torch_webgpu.kernels.attention.attention import Rules

from .grouped_heads import repeated
from .matching import FLOATS, VIEWS, Replacement, aten, calls, either_way_of, is_cast, value_of
from .private import is_webgpu, same

REGROUPINGS = (*VIEWS, aten.expand.default, aten.clone.default)


class Scores(NamedTuple):
    """What a softmax is of: a product, times ``scale``, with ``masks`` at a place with the sizes ``shape``: one, or
    several that are added.
    """

    product: Node
    rules: Rules
    scale: float = 1.0
    masks: tuple[Node, ...] = ()
    shape: tuple[Any, ...] = ()


class AttentionOperand(NamedTuple):
    """A factor of a product as it was before copies made a batch of matrices of it: ``node`` times ``scale``, with its
    last two dimensions swapped if ``turned``.
    """

    node: Node
    turned: bool
    scale: float


def attention(
    operands: tuple[torch.Tensor, ...],
    turned: tuple[bool, ...],
    heads: tuple[int, int] | None,
    masks: tuple[torch.Tensor, ...],
    scale: float,
    rules: tuple[Any, ...],
    is_merged: bool = False,
) -> torch.Tensor:
    """The result of query, key and value as (B * H, L, D), or as (B, L, H, D) if ``is_merged``; contiguous.

    ``heads``: what dimension 0 of operands of three becomes, with a -1. Key and value may have fewer heads.
    """
    matrices = [t.mT if turn else t for t, turn in zip(operands, turned)]
    query, key, value = [t if t.dim() == 4 else t.unflatten(0, heads) for t in matrices]
    mask = reduce(torch.add, [t.float() for t in masks]) if len(masks) > 1 else next(iter(masks), None)
    y = sdpa.written_out(query, key, value, mask, scale, Rules(*rules), is_merged)
    return y.transpose(1, 2) if is_merged else y.flatten(0, 1)


def match_merged(node: Node) -> Replacement | None:
    """For a copy of attention in which the heads of a token are side by side, as the next product takes them."""
    turned = node.args[0]
    if node.kwargs.get("memory_format") is not torch.contiguous_format or not swaps(turned, 1, 2, rank=4):
        return None
    assert isinstance(turned, Node)
    *views, inner = regrouped(turned.args[0])
    if inner.target is not attention or len(inner.args) != 6 or any(len(n.users) != 1 for n in (turned, *views, inner)):
        return None
    operands, _, heads, *_ = inner.args
    lead = value_of(operands[0]).shape[:2] if heads is None else heads  # type: ignore[index]
    b, _, h, _ = value_of(node).shape
    is_same = all(n == -1 or same(n, m) for n, m in zip(lead, (b, h), strict=True))  # type: ignore[arg-type]
    return (attention, (*inner.args, True)) if is_same else None


def match(node: Any) -> Replacement | None:
    """For the product of weights and values."""
    if not calls(node, aten.bmm.default):
        return None
    weights, value = node.args
    *between, softmax = regrouped(weights, casts=FLOATS)
    if not calls(softmax, aten._softmax.default) or any(len(n.users) != 1 for n in (*between, softmax)):
        return None
    x, dim, _ = softmax.args
    scores = scored(x) if dim in (-1, value_of(x).dim() - 1) else None
    return None if scores is None else call(scores, value)


def call(scores: Scores, value: Node) -> Replacement | None:
    """The attention that gives the product of the softmax of ``scores`` and ``value``."""
    query, key = scores.product.args
    lead = scores.shape[:2] if len(scores.shape) == 4 else None
    if not scores.masks:
        lead = next((tuple(value_of(n).shape[:2]) for n in regrouped(query) if value_of(n).dim() == 4), None)
    operands = [operand(query, lead, scales=True), operand(key, lead, scales=True), operand(value, lead)]
    values = [value_of(f.node) for f in operands]
    first, queries = values[0], value_of(scores.product).shape[1]
    few = isinstance(queries, int) and queries <= sdpa.FEW_QUERIES
    if lead is None and isinstance(queries, int) and not few:
        return None  # these would be the same products, and there are no heads to copy
    if len(scores.masks) > 1 and not few:
        return None  # their sum may be as large as the scores
    heads = heads_of(lead) if any(v.dim() != 4 for v in values) else None
    if heads == (-1, -1) or not is_webgpu(first) or same(first.shape[-1], 0):
        return None
    if first.dtype not in FLOATS or any((v.dtype, v.device) != (first.dtype, first.device) for v in values):
        return None
    turned = operands[0].turned, not operands[1].turned, operands[2].turned
    shared = [None if turn else repeated(f.node) for f, turn in zip(operands[1:], turned[1:])]
    nodes: list[Any] = [f.node for f in operands]
    if None not in shared and same(*(value_of(s).shape[1] for s in shared)):
        nodes[1:] = shared
    scale = scores.scale * operands[0].scale * operands[1].scale
    return attention, (tuple(nodes), turned, heads, scores.masks, scale, astuple(scores.rules))


def name_of(node: Node) -> str:
    """The name of a node's dtype in kernels."""
    return dtypes.of(value_of(node).dtype).name


def heads_of(lead: tuple[Any, ...] | None) -> tuple[int, int]:
    """The first two dimensions that a batch becomes, for :func:`attention`; -1 for what is not known, or follows."""
    if lead is None:
        return 1, -1
    batch, heads = lead
    return (-1, heads) if isinstance(heads, int) else (batch if isinstance(batch, int) else -1, -1)


def scored(node: Any) -> Scores | None:
    """A node as scores that nobody else uses, if it is that."""
    if not isinstance(node, Node) or len(node.users) != 1:
        return None
    if calls(node, aten.bmm.default):
        return Scores(node, Rules(zeros=False, stored=name_of(node)))
    if is_regrouping(node) or is_cast(node, (torch.float32,)):
        return scored(node.args[0])
    for x, factor in factors(node):
        scores = scored(x)
        if scores is not None and not scores.masks:
            return scores._replace(scale=scores.scale * factor)
    for x, mask, rules in masks(node):
        scores = scored(x) if x is not mask and fits(mask, node) else None
        if scores is None:
            continue
        found, shape = (*scores.masks, mask), tuple(value_of(node).shape)
        if len(found) == 1 or (len(shape) == len(scores.shape) and not any(map(is_bool, found))):
            return scores._replace(masks=found, rules=replace(scores.rules, **rules), shape=shape)
    return None


def operand(node: Any, lead: tuple[Any, ...] | None, scales: bool = False) -> AttentionOperand:
    """A factor of a product without what makes a batch of it; ``lead``: its first two dimensions, if that has four.

    ``scales``: it may be without factors.
    """
    turned, scale = False, 1.0
    fitting = AttentionOperand(node, turned, scale)
    while isinstance(node, Node):
        shape = value_of(node).shape
        if len(shape) == 3 if lead is None else len(shape) == 4 and all(map(same, shape, lead)):
            fitting = AttentionOperand(node, turned, scale)
        factor = next(factors(node), None) if scales else None
        if factor is not None:
            node, scale = factor[0], scale * factor[1]
        elif swaps(node, len(shape) - 2, len(shape) - 1, rank=len(shape)):
            node, turned = node.args[0], not turned
        elif is_regrouping(node):
            node = node.args[0]
        else:
            break
    return fitting


def regrouped(node: Any, casts: Collection[torch.dtype] = ()) -> Iterator[Node]:
    """A node, what it is a regrouping of the batches of, and so on; or a cast to one of these dtypes."""
    while True:
        yield node
        if not is_regrouping(node) and not is_cast(node, casts):
            return
        node = node.args[0]


def is_regrouping(node: Any) -> bool:
    """Whether a node is the same matrices in the same order, in other dimensions or another layout."""
    if not isinstance(node, Node) or node.target not in REGROUPINGS:
        return False
    one, other = value_of(node).shape, value_of(node.args[0]).shape
    return min(len(one), len(other)) > 1 and all(map(same, one[-2:], other[-2:])) and same(prod(one), prod(other))


def swaps(node: Any, one: int, other: int, rank: int) -> bool:
    """Whether a node is another of ``rank`` dimensions with two of these swapped."""
    order = list(range(rank))
    order[one], order[other] = other, one
    if calls(node, aten.permute.default):
        return [d % rank for d in node.args[1]] == order
    return calls(node, aten.transpose.int) and {d % rank for d in node.args[1:]} == {one, other} and len(order) == rank


def factors(node: Any) -> Iterator[tuple[Node, float]]:
    """What a node is a multiple of by a number, and that number."""
    if calls(node, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        x, number = node.args[0], constant(node.args[1])
        if number and isinstance(x, Node) and value_of(x).dtype == value_of(node).dtype:
            factor = number if node.target in (aten.mul.Tensor, aten.mul.Scalar) else 1 / number
            if isfinite(factor):
                yield x, factor


def masks(node: Any) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """What a node may be with a mask, that mask, and the :class:`Rules` for it."""
    dtype = value_of(node).dtype
    if calls(node, aten.add.Tensor):
        for x, mask in either_way_of(node):
            yield x, mask, {"rounded": name_of(node)}
        return
    if calls(node, aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        x, mask, number = node.args
        candidates = [(x, mask, number, True)]
    elif calls(node, aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf):
        mask, one, other = node.args
        candidates = [(one, mask, other, False), (other, mask, one, True)]
    else:
        return
    for x, mask, number, hides in candidates:
        fill = constant(number)
        if fill is not None and isinstance(x, Node) and value_of(x).dtype == dtype:
            stored = torch.tensor(fill, dtype=dtype).item()
            if fill == float("-inf") or isfinite(stored):
                yield x, mask, {"hides": hides, "fill": stored}


def fits(mask: Any, node: Node) -> bool:
    """Whether a mask broadcasts to the scores that a node is, and is of booleans or is added."""
    t, shape = value_of(mask), value_of(node).shape
    is_added = calls(node, aten.add.Tensor)
    if not is_webgpu(t) or not (t.dtype in FLOATS if is_added else is_bool(mask)) or len(shape) not in (3, 4):
        return False
    return all(same(n, 1) or same(n, m) for n, m in zip(reversed(t.shape), reversed(shape))) and t.dim() <= len(shape)


def is_bool(node: Any) -> bool:
    return bool(value_of(node).dtype == torch.bool)


def constant(value: Any) -> float | None:
    """A number, also as a tensor without dimensions that the graph makes."""
    if isinstance(value, Node) and value.target in (aten.full.default, aten.scalar_tensor.default):
        value = value.args[-1] if value_of(value).dim() == 0 else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
