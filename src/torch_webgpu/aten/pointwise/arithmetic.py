"""Arithmetic: sums, products, quotients, powers, and functions of integers.

Integers divided by the number 0 raise, as on the CPU. Where a tensor of divisors has a zero the quotient and the
remainder are 0, as CUDA raises nothing either: a check would give every kernel that divides integers another buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_webgpu.aten.dispatch.expressions import is_complex, is_integral, number, where
from torch_webgpu.aten.dispatch.register_pointwise import pointwise
from torch_webgpu.aten.dispatch.results import not_implemented
from torch_webgpu.aten.dispatch.torch_abi import is_wrapped_number
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops


def check_alpha(self: Any, other: Any, alpha: Any = 1) -> None:
    """Raises for a kind of ``alpha`` that the result's kind cannot take."""
    operands = [x.item() if isinstance(x, torch.Tensor) and is_wrapped_number(x) else x for x in (self, other)]
    result = torch.result_type(*operands)
    if isinstance(alpha, bool) and result != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, (float, complex)) and not (result.is_floating_point or result.is_complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if isinstance(alpha, complex) and not result.is_complex:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


def scaled(x: Expr, alpha: Expr) -> Expr:
    return x if number(alpha) == 1 else x * alpha


@pointwise("add", scalars="opmath", check=check_alpha)
def add(self: Expr, other: Expr, alpha: Expr) -> Expr:
    return self + scaled(other, alpha)


def check_sub(self: Any, other: Any, alpha: Any = 1) -> None:
    """Raises for booleans, which have no difference. PyTorch's meta kernel does so for tensors only."""
    booleans = [(x.dtype == torch.bool) if isinstance(x, torch.Tensor) else isinstance(x, bool) for x in (self, other)]
    error = RuntimeError if torch.__version__ < "2.14" else NotImplementedError
    if all(booleans):
        raise error(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            "Use the `^` or `logical_xor()` operator instead."
        )
    if any(booleans):
        raise error(
            "Subtraction, the `-` operator, with a bool tensor is not supported. "
            "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        )
    check_alpha(self, other, alpha)


@pointwise("sub", scalars="opmath", check=check_sub)
def sub(self: Expr, other: Expr, alpha: Expr) -> Expr:
    return self - scaled(other, alpha)


@pointwise("rsub", scalars="opmath", check=check_sub)
def rsub(self: Expr, other: Expr, alpha: Expr) -> Expr:
    return other - scaled(self, alpha)


@pointwise("mul", scalars="opmath")
def mul(self: Expr, other: Expr) -> Expr:
    return self * other


@pointwise("div", scalars="opmath", divisor="other")
def div(self: Expr, other: Expr, rounding_mode: str | None = None) -> Expr:
    if rounding_mode is None:
        return self / other
    return ops.floordiv(self, other) if rounding_mode == "floor" else ops.truncdiv(self, other)


@pointwise("floor_divide", scalars="opmath", divisor="other")
def floor_divide(self: Expr, other: Expr) -> Expr:
    return ops.floordiv(self, other)


@pointwise("addcmul", scalars="opmath")
def addcmul(self: Expr, tensor1: Expr, tensor2: Expr, value: Expr) -> Expr:
    return self + scaled(tensor1, value) * tensor2


@pointwise("addcdiv", scalars="opmath")
def addcdiv(self: Expr, tensor1: Expr, tensor2: Expr, value: Expr) -> Expr:
    return self + scaled(tensor1, value) / tensor2


@pointwise("lerp", scalars="opmath")
def lerp(self: Expr, end: Expr, weight: Expr) -> Expr:
    """From whichever end is nearer, so that weight 1 gives ``end`` exactly."""
    size = ops.abs_complex(weight) if is_complex(weight) else abs(weight)
    near_start = (size if is_complex(weight) else weight) < 0.5
    return where(near_start, self + weight * (end - self), end - (end - self) * (1 - weight))


# Unary rows of the op table that apply to every dtype they are listed for.
for _name in ("neg", "sign", "sgn", "reciprocal", "sqrt", "rsqrt"):

    @pointwise(_name)
    def unary(self: Expr, _row: str = {"sgn": "sign"}.get(_name, _name)) -> Expr:
        return getattr(ops, _row)(self)


@pointwise("abs", compute="keep")
def absolute(self: Expr) -> Expr:
    return ops.abs_complex(self) if is_complex(self) else abs(self)


for _name in ("fmod", "remainder", "gcd", "lcm", "hypot", "copysign", "atan2"):

    @pointwise(_name, divisor="other" if _name in ("fmod", "remainder") else "")
    def binary(self: Expr, other: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(self, other)


@pointwise("nextafter", widen=False)
def nextafter(self: Expr, other: Expr) -> Expr:
    row = {"bf16": ops.nextafter_bf16, "f16": ops.nextafter_f16}.get(self.dtype, ops.nextafter)
    return row(self, other)


@pointwise("ldexp", widen=False)
def ldexp(self: Expr, other: Expr) -> Expr:
    return self * ops.exp2(other)


@pointwise("frexp")
def frexp(self: Expr) -> tuple[Expr, Expr]:
    return ops.frexp_mantissa(self), ops.frexp_exponent(self)


# Powers


# Exponents that PyTorch serves by multiplication or a root.
SPECIAL_POWERS: dict[Any, Callable[[Expr], Expr]] = {
    0: lambda x: ops.like(x, 1),
    0.5: ops.sqrt,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -0.5: ops.rsqrt,
    -1: ops.reciprocal,
    -2: lambda x: ops.reciprocal(x * x),
}


def is_special_exponent(value: Any) -> bool:
    """Those above, and the negative ones, which PyTorch refuses for integers."""
    return value in SPECIAL_POWERS or (isinstance(value, int) and value < 0)


@pointwise("pow", in_code=is_special_exponent)
def power(self: Expr, exponent: Expr) -> Expr:
    fixed = number(exponent)
    if number(self) == 1:
        return ops.like(self, 1)
    if isinstance(fixed, int) and fixed < 0 and is_integral(self):
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    known = SPECIAL_POWERS.get(fixed)
    return ops.pow(self, exponent) if known is None else known(self)


# Logarithms of sums and products


@pointwise("xlogy")
def xlogy(self: Expr, other: Expr) -> Expr:
    return product_with_log(self, other, ops.log(other))


@pointwise("special_xlog1py")
def xlog1py(self: Expr, other: Expr) -> Expr:
    return product_with_log(self, other, ops.log1p(other))


def product_with_log(x: Expr, y: Expr, logarithm: Expr) -> Expr:
    """``x * logarithm``, but 0 where ``x`` is 0 and ``y`` is not NaN."""
    return where(ops.isnan(y), y, where(ops.eq(x, 0), 0, x * logarithm))


def check_exponents(self: torch.Tensor, other: torch.Tensor) -> None:
    """Raises for integers, between which there is no logarithm to take."""
    dtype = torch.result_type(self, other)
    if not (dtype.is_floating_point or dtype.is_complex):
        raise not_implemented("logaddexp_cpu", dtype)


@pointwise("logaddexp", check=check_exponents)
def logaddexp(self: Expr, other: Expr) -> Expr:
    larger, gap = larger_and_gap(self, other)
    return larger + ops.log1p(ops.exp(-gap))


@pointwise("logaddexp2", check=check_exponents)
def logaddexp2(self: Expr, other: Expr) -> Expr:
    larger, gap = larger_and_gap(self, other)
    return larger + ops.log1p(ops.exp2(-gap)) * 1.4426950408889634


def larger_and_gap(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """The larger operand and the operands' distance, which is infinite between equal infinities."""
    equal_infinities = ops.logical_and(ops.eq(a, b), ops.isinf(a))
    return ops.maximum(a, b), where(equal_infinities, float("inf"), abs(a - b))
