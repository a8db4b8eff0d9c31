"""Functions of one variable: exponentials, logarithms, trigonometry, rounding, PyTorch's special functions."""

from __future__ import annotations

from torch_webgpu.aten.dispatch.expressions import is_complex, is_integral, where
from torch_webgpu.aten.dispatch.register_pointwise import pointwise
from torch_webgpu.aten.dispatch.scalars import cast_scalar
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import BINARY_FLOAT, ops

FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc erfinv lgamma digamma i0"
).split()
SPECIAL = (
    "erfcx i0e i1 i1e ndtri log_ndtr airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 "
    "modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 "
    "scaled_modified_bessel_k0 scaled_modified_bessel_k1"
).split()
POLYNOMIALS = sorted(name for name in BINARY_FLOAT if "polynomial" in name)

for _name, _row in [(name, name) for name in FUNCTIONS] + [(f"special_{name}", name) for name in SPECIAL]:

    @pointwise(_name)
    def function(self: Expr, _row: str = _row) -> Expr:
        return getattr(ops, _row)(self)


for _name, _row in [(f"special_{name}", name) for name in (*POLYNOMIALS, "zeta")] + [
    ("igamma", "igamma"),
    ("igammac", "igammac"),
]:

    @pointwise(_name)
    def function_of_two(self: Expr, other: Expr, _row: str = _row) -> Expr:
        return getattr(ops, _row)(self, other)


@pointwise("polygamma")
def polygamma(n: Expr | int, self: Expr | int) -> Expr:
    """``n`` is a Python int; ``polygamma_`` takes it second."""
    order, x = (n, self) if isinstance(self, Expr) else (self, n)
    return ops.digamma(x) if order == 0 else ops.polygamma(ops.constant(order, x.dtype), x)  # type: ignore[union-attr, arg-type]


@pointwise("sinc")
def sinc(self: Expr) -> Expr:
    if is_complex(self):
        product = self * 3.141592653589793
        return where(ops.eq(self, 0), 1, ops.sin(product) / product)
    return ops.sinc(self)


@pointwise("special_entr")
def entr(self: Expr) -> Expr:
    positive = where(self > 0, -self * ops.log(self), where(ops.eq(self, 0), 0, ops.like(self, float("-inf"))))
    return where(ops.isnan(self), self, positive)


# Rounding

for _name in ("floor", "ceil", "trunc"):

    @pointwise(_name)
    def rounding(self: Expr, _name: str = _name) -> Expr:
        return self if is_integral(self) else getattr(ops, _name)(self)


@pointwise("frac")
def frac(self: Expr) -> Expr:
    return self - ops.trunc(self)


@pointwise("round", widen=False)
def round(self: Expr, decimals: int = 0) -> Expr:
    """Half to even; with decimals, by scaling in the tensor's own precision, as CPU PyTorch does."""
    if is_integral(self):
        return self
    if decimals == 0:
        return ops.round(self)
    power = cast_scalar(10.0 ** abs(decimals), self.dtype)
    return ops.round(self * power) / power if decimals > 0 else ops.round(self / power) * power
