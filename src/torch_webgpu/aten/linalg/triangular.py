"""Systems of equations with triangular matrices: blocks by substitution, what is beside them by products."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.triangular import BLOCK, Triangle, lower_triangular_solve

from .batches import matrices, natively, subtract_product


def half_of(n: int, block: int) -> int:
    """Where a matrix of ``n`` rows is parted: at the end of a block."""
    return -(-n // (2 * block)) * block


def solve_in_place(a: torch.Tensor, x: torch.Tensor, triangle: Triangle) -> None:
    """``x = a⁻¹ x`` of (batch, n, n) and (batch, n, columns), which may lie in one storage beside each other. Only one
    triangle of ``a`` is read.
    """
    n = a.shape[1]
    if not x.numel():
        return
    if n <= BLOCK:
        record_kernel("aten::linalg_solve_triangular", (a, x), (x,), Extern(lower_triangular_solve, (triangle,)))
        return
    half = half_of(n, BLOCK)
    first, last = slice(None, half), slice(half, None)
    if triangle.upper:
        first, last = last, first
    beside = a[:, last, first]
    solve_in_place(a[:, first, first], x[:, first], triangle)
    subtract_product(x[:, last], beside.conj() if triangle.conjugated else beside, x[:, first])
    solve_in_place(a[:, last, last], x[:, last], triangle)


def solve_into(x: torch.Tensor, a: torch.Tensor, triangle: Triangle, left: bool = True) -> torch.Tensor:
    """Solves ``a x = b``, or ``x a = b``, where the new tensor ``x`` (…, m, n) has b; ``a`` (…, n, n) broadcasts."""
    a = matrices(a.resolve_conj().expand(*x.shape[:-2], *a.shape[-2:]))
    x3 = matrices(x)
    if not left:
        a, x3 = a.mT, x3.mT
        triangle = Triangle(not triangle.upper, triangle.unit, triangle.conjugated)
    solve_in_place(a, x3, triangle)
    return x


def solve_triangular(
    self: torch.Tensor, B: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    (x,) = outputs_of(
        aten.linalg_solve_triangular.default, self, B, upper=upper, left=left, unitriangular=unitriangular
    )
    return solve_into(x.copy_(B), self, Triangle(upper, unitriangular), left)


def triangular_solve(
    self: torch.Tensor, A: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    x, copy = outputs_of(aten.triangular_solve.default, self, A, upper, transpose, unitriangular)
    copy.copy_(A)
    a = copy.mT if transpose else copy
    return solve_into(x.copy_(self), a, Triangle(upper != transpose, unitriangular)), copy


def register() -> None:
    target = aten.linalg_solve_triangular.default
    register_operator(target, natively(target, solve_triangular))
    target = aten.triangular_solve.default
    register_operator(target, natively(target, triangular_solve), strided="resized")
