"""Losses that are a mean, a sum or a tensor of per-element values, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.expressions import where
from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices, opmath
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

NONE, MEAN, SUM = 0, 1, 2
"""The values of ``reduction``."""

Loss = Callable[..., Expr]
"""``(input, target, *numbers)``: what an element contributes, or the slope of that."""


def record_loss(
    name: str,
    expression: Callable[..., Expr],
    inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
    loss: Loss,
    numbers: Sequence[float] = (),
) -> None:
    """Records ``expression(loss, count, *elements)`` in the dtype that ``out`` is computed in; it reads ``count``
    scalars, ``numbers``.
    """
    dtype = opmath(out.dtype)
    scalars = [(BY_NAME[dtype].kind, value) for value in numbers]
    record_pointwise(name, inputs, [out], expression, (loss, len(numbers)), scalars, dtype)


def loss_at(loss: Loss, count: int, x: Expr, t: Expr) -> Expr:
    return loss(x, t, *(ops.param(k, x.dtype) for k in range(count)))


def slope_at(slope: Loss, count: int, grad: Expr, x: Expr, t: Expr) -> Expr:
    """Scalar 0 is each element's share of the reduced loss."""
    share, *numbers = (ops.param(k, x.dtype) for k in range(count))
    return share * slope(x, t, *numbers) * grad


def weighted_loss_at(loss: Loss, count: int, x: Expr, t: Expr, *weight: Expr) -> Expr:
    return weighted(loss(x, t), *weight)


def weighted_slope_at(slope: Loss, count: int, grad: Expr, x: Expr, t: Expr, *weight: Expr) -> Expr:
    return grad * weighted(slope(x, t), *weight) * ops.param(0, x.dtype)


def weighted(value: Expr, weight: Expr | None = None) -> Expr:
    return value if weight is None else value * weight


def value_of(overload: OpOverload, expression: Loss) -> Callable[..., torch.Tensor]:
    """The kernel of a loss: ``expression(input, target, *numbers)`` at each element, reduced.

    ``numbers`` are what the schema lists after ``reduction``.
    """

    def loss(self: torch.Tensor, target: torch.Tensor, reduction: int = MEAN, *numbers: float) -> torch.Tensor:
        check_devices([self, target])
        if not numbers:
            numbers = defaults_of(overload)
        (out,) = outputs_of(overload, self, target, NONE, *numbers)
        record_loss(str(overload), loss_at, [self, target], out, expression, numbers)
        return reduced(out, reduction)

    return loss


def gradient_of(overload: OpOverload, expression: Loss) -> Callable[..., torch.Tensor]:
    """The kernel of a loss's derivative: ``expression(input, target, *numbers)`` times what flows in, spread evenly."""

    def backward(
        grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, *numbers: float
    ) -> torch.Tensor:
        check_devices([grad_output, self, target])
        (out,) = outputs_of(overload, grad_output, self, target, reduction, *numbers)
        numbers = (share_of(out, reduction), *numbers)
        record_loss(str(overload), slope_at, [grad_output, self, target], out, expression, numbers)
        return out

    return backward


def defaults_of(overload: OpOverload) -> tuple[float, ...]:
    arguments = overload._schema.arguments
    first = next(i for i, a in enumerate(arguments) if a.name == "reduction") + 1
    return tuple([cast(float, a.default_value) for a in arguments[first:]])


def share_of(out: torch.Tensor, reduction: int) -> float:
    """What each element contributes to the reduced loss."""
    return 1 / out.numel() if reduction == MEAN and out.numel() else 1.0


def reduced(loss: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == NONE:
        return loss
    return loss.mean() if reduction == MEAN else loss.sum()


# Values and slopes


def squared_error(x: Expr, t: Expr) -> Expr:
    return (x - t) * (x - t)


def squared_error_slope(x: Expr, t: Expr) -> Expr:
    return 2 * (x - t)


def smooth_l1(x: Expr, t: Expr, beta: Expr) -> Expr:
    z = abs(x - t)
    return where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta)


def smooth_l1_slope(x: Expr, t: Expr, beta: Expr) -> Expr:
    z = x - t
    return where(z <= -beta, -1, where(z >= beta, 1, z / beta))


def huber(x: Expr, t: Expr, delta: Expr) -> Expr:
    z = abs(x - t)
    return where(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta))


def huber_slope(x: Expr, t: Expr, delta: Expr) -> Expr:
    z = x - t
    return where(z <= -delta, -delta, where(z >= delta, delta, z))


def cross_entropy(x: Expr, t: Expr) -> Expr:
    """Binary. The logarithms are cut off at -100, as everywhere in PyTorch."""
    return (t - 1) * ops.maximum(ops.log1p(-x), -100) - t * ops.maximum(ops.log(x), -100)


def cross_entropy_slope(x: Expr, t: Expr) -> Expr:
    return (x - t) / ops.maximum((1 - x) * x, 1e-12)


def binary_cross_entropy(
    self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = MEAN
) -> torch.Tensor:
    """Inputs outside [0, 1], which CPU PyTorch refuses, give NaN."""
    inputs = [t for t in (self, target, weight) if t is not None]
    check_devices(inputs)
    (out,) = outputs_of(aten.binary_cross_entropy.default, self, target, weight, NONE)
    record_loss("aten.binary_cross_entropy", weighted_loss_at, inputs, out, cross_entropy)
    return reduced(out, reduction)


def binary_cross_entropy_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    inputs = [t for t in (self, target, weight) if t is not None]
    check_devices([grad_output, *inputs])
    overload = aten.binary_cross_entropy_backward.default
    (out,) = outputs_of(overload, grad_output, self, target, weight, reduction)
    share = (share_of(out, reduction),)
    record_loss(str(overload), weighted_slope_at, [grad_output, *inputs], out, cross_entropy_slope, share)
    return out


LOSSES: dict[str, tuple[Callable[..., Expr], Callable[..., Expr]]] = {
    "mse_loss": (squared_error, squared_error_slope),
    "smooth_l1_loss": (smooth_l1, smooth_l1_slope),
    "huber_loss": (huber, huber_slope),
}


def register() -> None:
    for name, (value, slope) in LOSSES.items():
        forward: Any = getattr(aten, name).default
        backward: Any = getattr(aten, f"{name}_backward").default
        register_operator(forward, value_of(forward, value))
        register_operator(backward, gradient_of(backward, slope))
    register_operator(aten.binary_cross_entropy.default, binary_cross_entropy)
    register_operator(aten.binary_cross_entropy_backward.default, binary_cross_entropy_backward)
