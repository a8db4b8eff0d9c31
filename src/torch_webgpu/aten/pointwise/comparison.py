"""Comparison, selection, bounds, logic and bits."""

from __future__ import annotations

from typing import Any

import torch

from torch_webgpu.aten.dispatch import expressions
from torch_webgpu.aten.dispatch.expressions import is_complex, is_integral, is_nan, where
from torch_webgpu.aten.dispatch.memory_overlap import check_writable
from torch_webgpu.aten.dispatch.register_pointwise import check_devices, pointwise, warn_of_expanded
from torch_webgpu.aten.dispatch.torch_abi import aten, impl
from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    @pointwise(_name, compute="promote")
    def compare(self: Expr, other: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(self, other)


for _name in ("isnan", "isinf", "signbit"):

    @pointwise(_name, compute="keep")
    def property_of(self: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(self)


for _name, _value in (("isposinf", float("inf")), ("isneginf", float("-inf"))):

    @pointwise(_name, compute="keep")
    def is_infinity(self: Expr, _value: float = _value) -> Expr:
        return ops.constant(False, "bool") if is_integral(self) else ops.eq(self, _value)


for _name in ("maximum", "minimum", "fmax", "fmin"):

    @pointwise(_name)
    def extremum(self: Expr, other: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(self, other)


@pointwise("clamp", in_code=is_nan)
def clamp(self: Expr, min: Expr | None, max: Expr | None) -> Expr:
    return expressions.clamp(self, min, max)


@pointwise("clamp_min", in_code=is_nan)
def clamp_min(self: Expr, min: Expr) -> Expr:
    return expressions.clamp(self, min, None)


@pointwise("clamp_max", in_code=is_nan)
def clamp_max(self: Expr, max: Expr) -> Expr:
    return expressions.clamp(self, None, max)


@pointwise("where", only=("self", "self_out"), scalars="opmath", checked=frozenset({"self", "other"}))
def select(condition: Expr, self: Expr, other: Expr) -> Expr:
    return where(ops.to_dtype(condition, "bool"), self, other)


def fill_expanded_(self: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """``masked_fill_`` where elements share memory: what any of their masks asks for."""
    warn_of_expanded("masked_fill_", "tensor[mask] = scalar")
    part, mask = self, mask.expand(self.shape)
    for d, stride in enumerate(self.stride()):
        if stride == 0:
            part, mask = part.narrow(d, 0, 1), mask.any(d, keepdim=True)
    check_writable(part.shape, part.stride())
    part.masked_fill_(mask, value)
    return self


@pointwise("masked_fill", expanded=fill_expanded_)
def masked_fill(self: Expr, mask: Expr, value: Expr) -> Expr:
    return where(ops.to_dtype(mask, "bool"), value, self)


@pointwise("heaviside")
def heaviside(self: Expr, values: Expr) -> Expr:
    return where(ops.eq(self, 0), values, ops.to_dtype(self > 0, self.dtype))


LARGEST = {name: torch.finfo(BY_NAME[name].torch).max for name in ("f16", "bf16", "f32", "f64")}


@pointwise("nan_to_num", compute="keep", widen=False, checked=frozenset())
def nan_to_num(self: Expr, nan: Expr | None, posinf: Expr | None, neginf: Expr | None) -> Expr:
    if is_integral(self):
        return self
    if is_complex(self):
        parts = ops.real(self), ops.imag(self)
        bounds = [b if b is None else ops.real(b) for b in (nan, posinf, neginf)]
        return ops.complex(*(nan_to_num(part, *bounds) for part in parts))
    largest = LARGEST[self.dtype]
    finite = where(ops.eq(self, float("inf")), largest if posinf is None else posinf, self)
    finite = where(ops.eq(self, float("-inf")), -largest if neginf is None else neginf, finite)
    return where(ops.isnan(self), 0 if nan is None else nan, finite)


# Logic and bits

for _name in ("logical_and", "logical_or", "logical_xor"):

    @pointwise(_name, compute="keep")
    def logical(self: Expr, other: Expr, _name: str = _name) -> Expr:
        return getattr(ops, _name)(ops.to_dtype(self, "bool"), ops.to_dtype(other, "bool"))


@pointwise("logical_not", compute="keep")
def logical_not(self: Expr) -> Expr:
    return ops.logical_not(ops.to_dtype(self, "bool"))


@pointwise("bitwise_not")
def bitwise_not(self: Expr) -> Expr:
    return ops.bitwise_not(self)


_BITWISE = {
    name: name for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift")
} | {
    "__lshift__": "bitwise_left_shift",
    "__ilshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    "__irshift__": "bitwise_right_shift",
}
for _name, _row in _BITWISE.items():

    @pointwise(_name)
    def bitwise(self: Expr, other: Expr, _row: str = _row) -> Expr:
        return getattr(ops, _row)(self, other)


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """``torch.equal``: one shape and equal elements (so no NaN). Waits for the answer."""
    if self.dtype != other.dtype:
        raise RuntimeError(
            f"Expected object of data type {self.dtype} but got data type {other.dtype} "
            "for argument 'other' in call to equal"
        )
    check_devices([self, other])
    return self.shape == other.shape and not bool(torch.ne(self, other).any())


def register() -> None:
    impl(aten.equal.default, equal)
