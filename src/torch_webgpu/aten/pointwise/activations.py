"""Activation functions and their derivatives."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch

from torch_webgpu.aten.dispatch import expressions
from torch_webgpu.aten.dispatch.expressions import is_complex, number, softplus_of, where
from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import opmath, pointwise
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops


@pointwise("relu")
def relu(self: Expr) -> Expr:
    return where(self < 0, 0, self)


@pointwise("threshold")
def threshold(self: Expr, threshold: Expr, value: Expr) -> Expr:
    return where(self <= threshold, value, self)


@pointwise("threshold_backward")
def threshold_backward(grad_output: Expr, self: Expr, threshold: Expr) -> Expr:
    return where(self <= threshold, 0, grad_output)


@pointwise("hardtanh", in_code=expressions.is_nan)
def hardtanh(self: Expr, min_val: Expr, max_val: Expr) -> Expr:
    return expressions.clamp(self, min_val, max_val)


@pointwise("hardtanh_backward")
def hardtanh_backward(grad_output: Expr, self: Expr, min_val: Expr, max_val: Expr) -> Expr:
    return where(ops.logical_or(self <= min_val, self >= max_val), 0, grad_output)


@pointwise("leaky_relu", scalars="opmath")
def leaky_relu(self: Expr, negative_slope: Expr) -> Expr:
    return where(self > 0, self, self * negative_slope)


@pointwise("leaky_relu_backward", scalars="opmath")
def leaky_relu_backward(grad_output: Expr, self: Expr, negative_slope: Expr, self_is_result: bool) -> Expr:
    return where(self > 0, grad_output, grad_output * negative_slope)


@pointwise("_prelu_kernel")
def prelu(self: Expr, weight: Expr) -> Expr:
    return where(self > 0, self, weight * self)


@pointwise("_prelu_kernel_backward")
def prelu_backward(grad_output: Expr, self: Expr, weight: Expr) -> tuple[Expr, Expr]:
    return where(self > 0, grad_output, weight * grad_output), where(self > 0, 0, self * grad_output)


@pointwise("elu", scalars="opmath")
def elu(self: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    return where(self < 0, ops.expm1(self * input_scale) * (alpha * scale), self * scale)


@pointwise("elu_backward", scalars="opmath")
def elu_backward(
    grad_output: Expr, alpha: Expr, scale: Expr, input_scale: Expr, is_result: bool, self_or_result: Expr
) -> Expr:
    x, slope = self_or_result, grad_output * input_scale
    if is_result:
        negative = slope * (x + alpha * scale)
    else:
        negative = slope * (alpha * scale) * ops.exp(x * input_scale)
    return where(x <= 0, negative, grad_output * scale)


# Smooth gates

GELU_BETA, GELU_KAPPA = sqrt(2 / pi), 0.044715


def gelu_tanh_of(x: Expr) -> Expr:
    return ops.tanh(GELU_BETA * (x + GELU_KAPPA * (x * x * x)))


@pointwise("gelu")
def gelu(self: Expr, approximate: str) -> Expr:
    inner = gelu_tanh_of(self) if approximate == "tanh" else ops.erf(self * sqrt(0.5))
    return self * 0.5 * (1 + inner)


@pointwise("gelu_backward")
def gelu_backward(grad_output: Expr, self: Expr, approximate: str) -> Expr:
    x = self
    if approximate == "tanh":
        tanh = gelu_tanh_of(x)
        inner_slope = GELU_BETA * (1 + 3 * GELU_KAPPA * (x * x))
        return grad_output * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner_slope)
    density = ops.exp(-0.5 * (x * x)) * (1 / sqrt(2 * pi))
    return grad_output * (0.5 * (1 + ops.erf(x * sqrt(0.5))) + x * density)


@pointwise("silu")
def silu(self: Expr) -> Expr:
    return self * ops.sigmoid(self)


@pointwise("silu_backward")
def silu_backward(grad_output: Expr, self: Expr) -> Expr:
    gate = ops.sigmoid(self)
    return grad_output * gate * (1 + self * (1 - gate))


@pointwise("mish")
def mish(self: Expr) -> Expr:
    return self * ops.tanh(softplus_of(self))


@pointwise("mish_backward")
def mish_backward(grad_output: Expr, self: Expr) -> Expr:
    tanh = ops.tanh(softplus_of(self))
    return grad_output * (tanh + self * ops.sigmoid(self) * (1 - tanh * tanh))


@pointwise("softplus", scalars="opmath")
def softplus(self: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = self * beta
    return where(scaled > threshold, self, softplus_of(scaled) / beta)


@pointwise("softplus_backward", scalars="opmath")
def softplus_backward(grad_output: Expr, self: Expr, beta: Expr, threshold: Expr) -> Expr:
    scaled = self * beta
    z = ops.exp(scaled)
    return where(scaled > threshold, grad_output, grad_output * z / (z + 1))


@pointwise("log_sigmoid_forward")
def log_sigmoid_forward(self: Expr) -> tuple[Expr, Expr]:
    """The result, and exp(-|x|) for the backward."""
    buffer = ops.exp(-abs(self))
    return ops.minimum(self, 0) - ops.log1p(buffer), buffer


@pointwise("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Expr, self: Expr, buffer: Expr) -> Expr:
    z = ops.exp(-abs(self))
    share = z / (1 + z)
    return grad_output * where(self < 0, 1 - share, share)


def conjugate(x: Expr) -> Expr:
    return ops.conj(x) if is_complex(x) else x


@pointwise("tanh_backward")
def tanh_backward(grad_output: Expr, output: Expr) -> Expr:
    return grad_output * conjugate(1 - output * output)


@pointwise("sigmoid_backward")
def sigmoid_backward(grad_output: Expr, output: Expr) -> Expr:
    return grad_output * conjugate((1 - output) * output)


def is_negative(value: Any) -> bool:
    """A negative eps of logit stands for none."""
    return value < 0


def no_eps(eps: Expr | None) -> bool:
    value = number(eps)
    return eps is None or (value is not None and value < 0)  # type: ignore[operator]


@pointwise("logit", scalars="opmath", in_code=is_negative)
def logit(self: Expr, eps: Expr | None) -> Expr:
    x = self
    if eps is not None and not no_eps(eps):
        x = where(x < eps, eps, where(x > 1 - eps, 1 - eps, x))
    return ops.log(x / (1 - x))


@pointwise("logit_backward", scalars="opmath", in_code=is_negative)
def logit_backward(grad_output: Expr, self: Expr, eps: Expr | None) -> Expr:
    x, slope = self, grad_output / (self * (1 - self))
    if eps is not None and not no_eps(eps):
        return where(ops.logical_or(x < eps, x > 1 - eps), 0, slope)
    at_the_ends = ops.logical_or(ops.eq(x, 0), ops.eq(x, 1))
    inside = where(at_the_ends, grad_output * float("inf"), slope)
    return where(ops.logical_or(x < 0, x > 1), float("nan"), inside)


# Piecewise linear gates


def relu6_of(x: Expr) -> Expr:
    return expressions.clamp(x, 0, 6)


@pointwise("hardswish")
def hardswish(self: Expr) -> Expr:
    return self * relu6_of(self + 3) / 6


@pointwise("hardswish_backward")
def hardswish_backward(grad_output: Expr, self: Expr) -> Expr:
    inside = where(self < 3, grad_output * (self / 3 + 0.5), grad_output)
    return where(self <= -3, 0, inside)


@pointwise("hardsigmoid")
def hardsigmoid(self: Expr) -> Expr:
    return relu6_of(self + 3) / 6


@pointwise("hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Expr, self: Expr) -> Expr:
    return where(ops.logical_and(self > -3, self < 3), grad_output / 6, 0)


def within(x: Expr, lambd: Expr) -> Expr:
    return ops.logical_and(x >= -lambd, x <= lambd)


@pointwise("hardshrink")
def hardshrink(self: Expr, lambd: Expr) -> Expr:
    return where(within(self, lambd), 0, self)


def check_softshrink(self: Any, lambd: float) -> None:
    if lambd < 0:
        check_as_cpu(aten.softshrink.default, self, lambd)


@pointwise("softshrink", check=check_softshrink, in_code=lambda lambd: lambd < 0)
def softshrink(self: Expr, lambd: Expr) -> Expr:
    # Not self * 0, which drivers compile to 0: NaN stays.
    return where(self > lambd, self - lambd, where(self < -lambd, self + lambd, where(ops.isnan(self), self, 0)))


@pointwise("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad_output: Expr, self: Expr, lambd: Expr) -> Expr:
    return where(within(self, lambd), 0, grad_output)


# Activations that are not per element of their input


def halves(t: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = t.size(dim) // 2
    return t.narrow(dim, 0, size), t.narrow(dim, size, size)


def gated(a: Expr, b: Expr) -> Expr:
    return a * ops.sigmoid(b)


def glu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The first half of ``self`` along ``dim`` times the sigmoid of the second."""
    (out,) = outputs_of(aten.glu.default, self, dim)
    record_pointwise("aten.glu", halves(self, dim), [out], gated, dtype=opmath(out.dtype))
    return out


def input_gradient(grad: Expr, b: Expr) -> Expr:
    return ops.sigmoid(b) * grad


def gate_gradient(grad: Expr, a: Expr, b: Expr) -> Expr:
    gate = ops.sigmoid(b)
    return (1 - gate) * gate * grad * a


def glu_backward(grad_output: torch.Tensor, self: torch.Tensor, dim: int) -> torch.Tensor:
    (out,) = outputs_of(aten.glu_backward.default, grad_output, self, dim)
    (a, b), (grad_a, grad_b), dtype = halves(self, dim), halves(out, dim), opmath(out.dtype)
    record_pointwise("aten.glu_backward", [grad_output, b], [grad_a], input_gradient, dtype=dtype)
    record_pointwise("aten.glu_backward.gate", [grad_output, a, b], [grad_b], gate_gradient, dtype=dtype)
    return out


def directional(glu: Expr, b: Expr, da: Expr, db: Expr) -> Expr:
    gate = ops.sigmoid(b)
    return da * gate + glu * (1 - gate) * db


def glu_jvp(glu: torch.Tensor, x: torch.Tensor, dx: torch.Tensor, dim: int) -> torch.Tensor:
    """The derivative of ``glu(x)`` along ``dx``."""
    out = torch.empty_like(glu)
    (_, b), (da, db) = halves(x, dim), halves(dx, dim)
    record_pointwise("aten.glu_jvp", [glu, b, da, db], [out], directional, dtype=opmath(out.dtype))
    return out


def glu_backward_jvp(
    grad_x: torch.Tensor,
    grad_glu: torch.Tensor,
    x: torch.Tensor,
    dgrad_glu: torch.Tensor,
    dx: torch.Tensor,
    dim: int,
) -> torch.Tensor:
    """The derivative of ``grad_x = glu_backward(grad_glu, x)`` along ``dgrad_glu`` and ``dx``."""
    (a, b), (da, db), (grad_a, _) = halves(x, dim), halves(dx, dim), halves(grad_x, dim)
    gate = b.sigmoid()
    closing = 1 - gate
    dgate = gate * closing * db
    dgrad_a = dgrad_glu * gate + grad_glu * dgate
    dgrad_b = dgrad_a * a * closing + grad_a * (da * closing - a * dgate)
    return torch.cat([dgrad_a, dgrad_b], dim)


def rrelu_with_noise(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """A leaky ReLU whose slope is random in training; ``noise`` receives the slopes."""
    if not training:
        return aten.leaky_relu(self, (lower + upper) / 2)
    slopes = torch.empty_like(self).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(self <= 0, slopes, torch.ones_like(slopes)))
    return self * noise


@pointwise("native_dropout_backward", "_masked_scale", scalars="opmath")
def masked_scale(self: Expr, mask: Expr, scale: Expr) -> Expr:
    return self * ops.to_dtype(mask, self.dtype) * scale


def register() -> None:
    register_operator(aten.glu.default, glu)
    register_operator(aten.glu_backward.default, glu_backward)
    register_operator(aten.glu_jvp.default, glu_jvp)
    register_operator(aten.glu_backward_jvp.default, glu_backward_jvp)
    register_operator(aten.rrelu_with_noise.default, rrelu_with_noise)
