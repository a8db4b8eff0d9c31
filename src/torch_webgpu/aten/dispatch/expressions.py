"""Small vocabulary for writing per-element expressions: what :class:`~torch_webgpu.ir.graph.Expr`'s operators lack."""

from __future__ import annotations

from typing import Any

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, Operand
from torch_webgpu.ir.ops import ops


def is_integral(x: Expr) -> bool:
    """Whether ``x`` is of an integer type or bool."""
    return BY_NAME[x.dtype].is_integer or x.dtype == "bool"


def is_complex(x: Expr) -> bool:
    return BY_NAME[x.dtype].kind == "c"


def where(condition: Expr, chosen: Operand, other: Operand) -> Expr:
    """``chosen`` where ``condition``, else ``other``; at most one of the two a number."""
    return ops.where(condition, chosen, other)


def number(x: object) -> float | int | bool | complex | None:
    """The value of a constant; None for any other expression."""
    if not isinstance(x, Expr) or x.op != "const":
        return None
    kind = BY_NAME[x.dtype].kind
    if kind == "b":
        return x.args[0] == "True"
    return {"f": float, "d": float, "c": complex}.get(kind, int)(x.args[0])


def clamp(x: Expr, low: Operand | None, high: Operand | None) -> Expr:
    """NaN in any operand wins, and the upper bound wins over the lower, as in PyTorch."""
    if any(isinstance(value := number(bound), float) and value != value for bound in (low, high)):
        return ops.like(x, float("nan"))
    if low is not None:
        x = ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


def is_nan(value: Any) -> bool:
    """Whether a number is NaN: a bound that makes every element NaN deserves code of its own."""
    return value != value


def softplus_of(x: Expr) -> Expr:
    """log(1 + exp(x))"""
    return ops.log1p(ops.exp(x))
