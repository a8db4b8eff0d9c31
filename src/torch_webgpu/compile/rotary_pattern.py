"""Rotary embeddings, written out over the halves of heads, and their gradients: one kernel each, which may round its
result, or write it into a cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import has_side_effect

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.attention import rotary as kernel

from .matching import HALVES, Replacement, aten, calls, either_way, either_way_of, is_cast, is_plain, value_of


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    is_gradient: bool = False,
) -> torch.Tensor:
    """``x * cos + cat((-x[..., D // 2:], x[..., :D // 2]), -1) * sin`` with the result's strides; x is (B, H, S, D). Or
    the gradient of what that is of, if x is the gradient of that.
    """
    y = engine().empty(x.shape, dtype, x.device.index, strides)
    record_kernel("rotary", (x, cos, sin), (y,), kernel.extern(is_gradient))
    return y


@has_side_effect
def rotary_write(
    cache: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """``cache.index_copy_(2, rows, rotary(x, cos, sin))`` for a cache (B, H, R, D)."""
    record_kernel("rotary_write", (x, cos, sin, rows), (cache,), kernel.write_extern())
    return cache


def match_write(node: Any) -> Replacement | None:
    """For a write through an index into a cache, of a rotary embedding that nobody else uses."""
    if not calls(node, aten.index_copy_.default) or node.args[1] not in (2, -2):
        return None
    cache, _, rows, new = node.args
    if not isinstance(new, Node) or new.target is not rotary or new.args[5:] or len(new.users) > 1:
        return None
    one, index = cache.meta.get("val"), rows.meta["val"]
    if not is_plain(one, 4) or one.dtype != new.meta["val"].dtype or index.dim() != 1:
        return None
    if torch.are_deterministic_algorithms_enabled():  # of several writes into a row, the last one counts then
        return None
    return rotary_write, (cache, rows, *new.args[:3])


def match(node: Any) -> Replacement | None:
    """For the sum that ends a rotary embedding."""
    y = node.meta.get("val")
    if not is_plain(y, 4) or node.kwargs or y.shape[3] % 2:
        return None
    for straight, turned in either_way(node, aten.mul.Tensor):
        for x, cos in either_way_of(straight):
            for halves, sin in either_way_of(turned):
                ends = half_turned(halves, x, y.shape[3] // 2)
                if ends and all(fits(n, y) for n in (x, cos, sin)):
                    return rotary, (x, cos, sin, tuple(y.stride()), y.dtype)
    return None


def match_rounded(node: Any) -> Replacement | None:
    """For a copy in 16 bits of a rotary embedding that nobody else uses: autocast's, for attention."""
    source, y = node.args[0], value_of(node)
    if not is_cast(node, HALVES) or source.target is not rotary or len(source.users) > 1 or not is_plain(y, 4):
        return None
    x, cos, sin, _, _, *rest = source.args
    return rotary, (x, cos, sin, tuple(y.stride()), y.dtype, *rest)


def match_gradient(node: Any) -> Replacement | None:
    """For the sum that ends the gradient of a rotary embedding: ``g * cos`` and the halves of ``g * sin``, put side by
    side in the other order, the second with its sign turned.
    """
    y = node.meta.get("val")
    if not is_plain(y, 4) or node.kwargs or y.shape[3] % 2:
        return None
    for straight, halves in either_way_of(node):
        turned = half_turned_back(halves, y.shape[3] // 2)
        straight, turned = unrounded(straight), unrounded(turned)
        if not all(calls(product, aten.mul.Tensor) for product in (straight, turned)):
            continue
        for g, cos in either_way_of(straight):
            for other, sin in either_way_of(turned):
                if other is g and all(fits(n, y) for n in (g, cos, sin)) and g.meta["val"].shape == y.shape:
                    return rotary, (unwidened(g), cos, sin, tuple(y.stride()), y.dtype, True)
    return None


def half_turned_back(node: Any, half: int) -> Any:
    """x, if a node is ``cat((x[..., half:], -x[..., :half]), -1)``."""
    high, negative = side_by_side(node)
    if not calls(high, aten.slice.Tensor) or not calls(negative, aten.neg.default):
        return None
    x = high.args[0]
    return x if is_slice(high, x, half, 2 * half) and is_slice(negative.args[0], x, 0, half) else None


def unrounded(node: Any) -> Any:
    """What a node is a copy of in 16 bits, or the node: kernels round their results alone."""
    return node.args[0] if is_cast(node, HALVES) else node


def unwidened(node: Node) -> Node:
    """What a node is a copy of in float32, or the node: kernels compute in that."""
    return node.args[0] if is_cast(node, (torch.float32,)) else node  # type: ignore[return-value]


def half_turned(node: Any, x: Any, half: int) -> bool:
    """Whether a node is ``cat((-x[..., half:], x[..., :half]), -1)``."""
    negative, low = side_by_side(node)
    if not calls(negative, aten.neg.default):
        return False
    return is_slice(negative.args[0], x, half, 2 * half) and is_slice(low, x, 0, half)


def side_by_side(node: Any) -> tuple[Any, Any]:
    """The two nodes that a node of four dimensions has side by side along the last one; None, None for others."""
    if not calls(node, aten.cat.default) or len(node.args) != 2 or node.args[1] not in (-1, 3):
        return None, None
    parts = node.args[0]
    return tuple(parts) if len(parts) == 2 else (None, None)


def is_slice(node: Any, x: Any, start: int, stop: int) -> bool:
    """Whether a node is ``x[..., start:stop]``, the last dimension of 4 ending at ``stop`` or later."""
    if not calls(node, aten.slice.Tensor) or node.args[0] is not x:
        return False
    given = list(node.args[1:])
    dim, first, last, step = given + [0, 0, 1 << 62, 1][len(given) :]
    size = x.meta["val"].shape[3]
    return bool(dim in (-1, 3) and (first or 0) == start and min(last, size) == stop and step == 1)


def fits(node: Node, y: torch.Tensor) -> bool:
    """Whether a node is a floating tensor that broadcasts to a result's shape."""
    t = value_of(node)
    if not is_plain(t) or t.dim() > 4:
        return False
    shape = (1,) * (4 - t.dim()) + tuple(t.shape)
    return all(n in (1, m) for n, m in zip(shape, y.shape))
