"""Distances between all pairs of vectors, and their gradients: reductions over differences that are never stored."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.operations import Fold, record_reduction
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .reduce import VectorNorm, itself, number, own


def cdist(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """(…, P, M) and (…, R, M) to (…, P, R): the p-norms of all differences."""
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    out = x1.new_empty((*batch, x1.shape[-2], x2.shape[-2]))
    norm = VectorNorm.of(p)
    shape = (*out.shape, x1.shape[-1])
    scalars = [number(v, x1.dtype) for v in norm.scalars]
    inputs, arguments = [x1.unsqueeze(-2), x2.unsqueeze(-3)], (norm.order, norm.combine)
    dims = (len(shape) - 1,)
    record_reduction("aten::_cdist_forward", inputs, [out], shape, dims, distance_of, arguments, scalars=scalars)
    return out


def distance_of(order: float | None, combine: str, a: Expr, b: Expr) -> Fold:
    """Vectors of no elements are at distance 0, also by the norms that are extremes."""
    norm = VectorNorm(order, combine)
    value = norm.contribution(abs(own(a) - own(b)))
    return Fold((value,), (combine,), lambda total: (norm.result(ops.maximum(total, ops.like(total, 0))),))


def cdist_backward(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, cdist: torch.Tensor
) -> torch.Tensor:
    """The gradient of ``x1``, (…, P, M): the sum over R of each distance's slope."""
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    out = x1.new_empty((*batch, *x1.shape[-2:]))
    order = p if p in (0, 1, 2, float("inf")) else None
    shape = (*batch, x1.shape[-2], x2.shape[-2], x1.shape[-1])
    inputs = [grad.unsqueeze(-1), x1.unsqueeze(-2), x2.unsqueeze(-3), cdist.unsqueeze(-1)]
    scalars = [] if order is not None else [number(p, x1.dtype)]
    dims = (len(shape) - 2,)
    record_reduction("aten::_cdist_backward", inputs, [out], shape, dims, slopes, (order,), scalars=scalars)
    return out


def slopes(order: float | None, g: Expr, a: Expr, b: Expr, distance: Expr) -> Fold:
    slope = distance_slope(own(a) - own(b), own(distance), order)
    return Fold((own(g) * slope,), ("sum",), itself)


def pdist(self: torch.Tensor, p: float = 2) -> torch.Tensor:
    """(N, M) to (N (N - 1) / 2,): the distances of all pairs, row by row of the upper triangle."""
    first, second = pairs(self)
    return cdist(self, self, p, None)[first, second]


def pdist_backward(grad: torch.Tensor, self: torch.Tensor, p: float, pdist: torch.Tensor) -> torch.Tensor:
    return cdist_backward(square(grad, self), self, self, p, square(pdist, self))


def pairs(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.triu_indices(t.shape[0], t.shape[0], 1, device=t.device)
    return first, second


def square(condensed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The symmetric matrix with an empty diagonal whose upper triangle is ``condensed``."""
    first, second = pairs(like)
    full = condensed.new_zeros(like.shape[0], like.shape[0])
    full[first, second] = condensed
    full[second, first] = condensed
    return full


def distance_slope(difference: Expr, distance: Expr, order: float | None) -> Expr:
    """d distance / d difference; 0 where either is 0, as PyTorch has it. ``order`` None: scalar 0 is p."""
    zero, size = ops.like(distance, 0), abs(difference)
    if order == 0:
        return zero
    if order == 1:
        return ops.sign(difference)
    if order == float("inf"):
        return ops.where(ops.eq(size, distance), ops.sign(difference), zero)
    if order == 2:
        return ops.where(ops.eq(distance, 0), zero, difference / distance)
    exponent = ops.param(0, distance.dtype) - 1.0
    slope = ops.sign(difference) * ops.pow(size, exponent) / ops.pow(distance, exponent)
    return ops.where(ops.eq(distance, 0) | ops.eq(difference, 0), zero, slope)


def register() -> None:
    register_operator(aten._cdist_forward.default, cdist)
    register_operator(aten._cdist_backward.default, cdist_backward)
    register_operator(aten._pdist_forward.default, pdist)
    register_operator(aten._pdist_backward.default, pdist_backward)
