"""Complex numbers: making them, taking them apart."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.expressions import is_complex, is_integral, where
from torch_webgpu.aten.dispatch.register_pointwise import pointwise
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

PI = 3.141592653589793


def check_parts(real: torch.Tensor, imag: torch.Tensor) -> None:
    """Raises unless both parts are real floating point."""
    if not (real.is_floating_point() and imag.is_floating_point()):
        found = f"{name_of(real.dtype)} and {name_of(imag.dtype)}"
        raise RuntimeError(f"Expected both inputs to be Half, Float or Double tensors but got {found}")


@pointwise("complex", compute="promote", check=check_parts)
def make_complex(real: Expr, imag: Expr) -> Expr:
    return ops.complex(real, imag)


@pointwise("polar", compute="promote", check=check_parts)
def polar(abs: Expr, angle: Expr) -> Expr:
    return ops.polar(abs, angle)


@pointwise("angle", compute="keep")
def angle(self: Expr) -> Expr:
    """Of a real number: pi where it is negative, else 0."""
    if is_complex(self):
        return ops.angle(self)
    if is_integral(self):
        self = ops.to_dtype(self, "f32")
    return where(ops.isnan(self), self, where(self < 0, PI, ops.like(self, 0)))


@pointwise("_conj_physical", "conj_physical", compute="keep")
def conj_physical(self: Expr) -> Expr:
    return ops.conj(self) if is_complex(self) else self
