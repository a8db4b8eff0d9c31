"""Per-element ATen operators, each one expression over the op table."""

from __future__ import annotations

from typing import Any

from ..dtypes import BY_NAME
from ..ir.graph import Expr
from ..ir.ops import ops
from .register import pointwise


def is_integral(x: Expr) -> bool:
    return BY_NAME[x.dtype].is_integer or x.dtype == "bool"


def clamp_range(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """NaN in any operand wins, and the upper bound wins over the lower, as in PyTorch."""
    if low is not None:
        x = ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


# Arithmetic ------------------------------------------------------------------------------------------------------------


def scaled(x: Expr, alpha: Any) -> Expr:
    return x if alpha is None or alpha == 1 else ops.mul(x, alpha)


@pointwise("add")
def add(self: Expr, other: Expr, alpha: Any = None) -> Expr:
    return ops.add(self, scaled(other, alpha))


@pointwise("sub")
def sub(self: Expr, other: Expr, alpha: Any = None) -> Expr:
    return ops.sub(self, scaled(other, alpha))


@pointwise("mul")
def mul(self: Expr, other: Expr) -> Expr:
    return ops.mul(self, other)


@pointwise("div")
def div(self: Expr, other: Expr, rounding_mode: str | None = None) -> Expr:
    if rounding_mode is None:
        return ops.truediv(self, other)
    return ops.floordiv(self, other) if rounding_mode == "floor" else ops.truncdiv(self, other)


# Comparison ------------------------------------------------------------------------------------------------------------

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    @pointwise(_name, compute="promote")
    def compare(self: Expr, other: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(self, other)  # type: ignore[no-any-return]


# Floating-point functions ----------------------------------------------------------------------------------------------

for _name in "exp log sin cos tanh sigmoid sqrt rsqrt".split():

    @pointwise(_name)
    def function(self: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(self)  # type: ignore[no-any-return]


@pointwise("neg")
def neg(self: Expr) -> Expr:
    return ops.neg(self)


@pointwise("relu")
def relu(self: Expr) -> Expr:
    return ops.maximum(self, ops.like(self, 0))
