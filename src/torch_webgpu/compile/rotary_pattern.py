"""Rotary embeddings, written out over the halves of heads: one kernel, which may write into a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import has_side_effect

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.attention import rotary as kernel

from .matching import Replacement, aten, calls, either_way, either_way_of, is_plain


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``x * cos + cat((-x[..., D // 2:], x[..., :D // 2]), -1) * sin`` with the result's strides; x is (B, H, S, D)."""
    y = engine().empty(x.shape, x.dtype, x.device.index, strides)
    record_kernel("rotary", (x, cos, sin), (y,), kernel.extern())
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
    if not isinstance(new, Node) or new.target is not rotary or len(new.users) > 1:
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
                if ends and all(is_plain(n.meta.get("val")) and fits(n.meta["val"], y) for n in (x, cos, sin)):
                    return rotary, (x, cos, sin, tuple(y.stride()))
    return None


def half_turned(node: Any, x: Any, half: int) -> bool:
    """Whether a node is ``cat((-x[..., half:], x[..., :half]), -1)``."""
    if (
        not calls(node, aten.cat.default)
        or len(node.args) != 2
        or node.args[1] not in (-1, 3)
        or len(node.args[0]) != 2
    ):
        return False
    negative, low = node.args[0]
    if not calls(negative, aten.neg.default):
        return False
    return is_slice(negative.args[0], x, half, 2 * half) and is_slice(low, x, 0, half)


def is_slice(node: Any, x: Any, start: int, stop: int) -> bool:
    """Whether a node is ``x[..., start:stop]``, the last dimension of 4 ending at ``stop`` or later."""
    if not calls(node, aten.slice.Tensor) or node.args[0] is not x:
        return False
    given = list(node.args[1:])
    dim, first, last, step = given + [0, 0, 1 << 62, 1][len(given) :]
    size = x.meta["val"].shape[3]
    return bool(dim in (-1, 3) and (first or 0) == start and min(last, size) == stop and step == 1)


def fits(t: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether a tensor is of the result's dtype and broadcasts to its shape."""
    shape = (1,) * (4 - t.dim()) + tuple(t.shape)
    return t.dtype == y.dtype and t.dim() <= 4 and all(n in (1, m) for n, m in zip(shape, y.shape))
