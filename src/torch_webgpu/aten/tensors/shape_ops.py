"""Triangles and windows: tril, triu and their indices, the gradient of unfold, channel_shuffle."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, impl, outputs_of
from torch_webgpu.aten.indexing.compaction import nonzero
from torch_webgpu.aten.indexing.indexing import wrap_dim
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops


def triangle(self: torch.Tensor, diagonal: int = 0, *, lower: bool) -> torch.Tensor:
    """The elements on one side of a diagonal of each matrix, zeros on the other."""
    (out,) = outputs_of((aten.tril if lower else aten.triu).default, self, diagonal)
    if out.numel():
        bound = max(self.shape[-2:])
        name, rank = "tril" if lower else "triu", self.dim()
        record_pointwise(name, [self], [out], side_of_diagonal, (lower, rank), [("i", clamp(diagonal, bound))])
    return out


def side_of_diagonal(lower: bool, rank: int, value: Expr) -> Expr:
    """Scalar 0 is the diagonal."""
    above = ops.sub(ops.index(rank - 1), ops.index(rank - 2))
    side = (ops.le if lower else ops.ge)(above, ops.param(0, "i32"))
    return ops.where(side, value, ops.like(value, 0))


def clamp(value: int, bound: int) -> int:
    return max(-bound, min(bound, value))


def triangle_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    lower: bool,
) -> torch.Tensor:
    if row < 0 or col < 0:
        raise RuntimeError(f"row and col must be non-negative, got {row} and {col}")
    side = triangle(torch.ones((row, col), dtype=torch.bool, device=device), offset, lower=lower)
    return nonzero(side).t().to(dtype or torch.int64, memory_format=torch.contiguous_format)


def unfold_backward(grad: torch.Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> torch.Tensor:
    """Each element of the input gets the sum over the windows that it was in."""
    result = grad.new_zeros(input_sizes)
    if grad.numel() == 0:
        return result
    if not input_sizes:
        return grad.sum().view(())
    dim = wrap_dim(dim, len(input_sizes))
    windows = torch.arange(grad.shape[dim], device=grad.device) * step
    places = windows.unsqueeze(1) + torch.arange(size, device=grad.device)
    return result.index_add_(dim, places.view(-1), grad.movedim(-1, dim + 1).flatten(dim, dim + 1))


def channel_shuffle(self: torch.Tensor, groups: int) -> torch.Tensor:
    if self.dim() < 3:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(self.shape)}")
    channels = self.shape[1]
    if groups <= 0:
        raise RuntimeError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    if self.numel() == 0:
        return self.view(self.shape)
    shuffled = self.unflatten(1, (groups, channels // groups)).transpose(1, 2).reshape(self.shape)
    return shuffled.clone() if shuffled.data_ptr() == self.data_ptr() else shuffled


def register() -> None:
    impl(aten.tril_indices.default, partial(triangle_indices, lower=True))
    impl(aten.triu_indices.default, partial(triangle_indices, lower=False))
    for overload, fn in (
        (aten.tril.default, partial(triangle, lower=True)),
        (aten.triu.default, partial(triangle, lower=False)),
        (aten.unfold_backward.default, unfold_backward),
        (aten.channel_shuffle.default, channel_shuffle),
    ):
        register_operator(overload, fn, by_mode=True)
