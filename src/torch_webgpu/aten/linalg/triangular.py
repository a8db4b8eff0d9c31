"""Systems of equations with triangular matrices: halves with a product between them, down to some that a dispatch for
each block of rows solves, or down to such blocks.
"""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.tensors.copy import plain
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.substitution import width_of
from torch_webgpu.kernels.linalg.triangular import BLOCK, Triangle, lower_triangular_solve, lower_triangular_step
from torch_webgpu.target import Target

from .batches import by_columns, copied_by_columns, matrices, natively, subtract_product

MOST_ROWS = 2048
"""Rows of what is solved block by block. Each block reads and writes all that is left; products of halves do not."""


def is_stepwise(n: int, target: Target) -> bool:
    """Whether systems are solved block by block: few dispatches, with many barriers, which CPUs have to imitate."""
    return BLOCK < n <= MOST_ROWS and not target.software


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
    if is_stepwise(n, engine().device(x.get_device()).target):
        solve_by_blocks(a, copied_by_columns(x), x, triangle)
        return
    half = half_of(n, BLOCK)
    first, last = slice(None, half), slice(half, None)
    if triangle.upper:
        first, last = last, first
    beside = a[:, last, first]
    solve_in_place(a[:, first, first], x[:, first], triangle)
    subtract_product(x[:, last], beside.conj() if triangle.conjugated else beside, x[:, first])
    solve_in_place(a[:, last, last], x[:, last], triangle)


def solve_by_blocks(a: torch.Tensor, work: torch.Tensor, x: torch.Tensor, triangle: Triangle) -> None:
    """``x = a⁻¹ work``, block by block of rows; ``work`` is overwritten, and may not lie in a storage of the others."""
    if a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        a = copied_by_columns(a)
    for start in range(0, a.shape[1], width_of(a.element_size())):
        kernel = Extern(lower_triangular_step, (start, triangle))
        record_kernel("aten::linalg_solve_triangular", (a, work, x), (work, x), kernel)


def solve_twice_in_place(a: torch.Tensor, x: torch.Tensor, first: Triangle, second: Triangle) -> None:
    """Solves with two triangles of one matrix, one after the other."""
    if is_stepwise(a.shape[1], engine().device(x.get_device()).target):
        between = by_columns(x.shape, x.dtype, x)
        solve_by_blocks(a, x, between, first)
        solve_by_blocks(a, between, x, second)
    else:
        solve_in_place(a, x, first)
        solve_in_place(a, x, second)


def solve_into(x: torch.Tensor, a: torch.Tensor, triangle: Triangle, left: bool = True) -> torch.Tensor:
    """Solves ``a x = b``, or ``x a = b``, where the new tensor ``x`` (…, m, n) has b; ``a`` (…, n, n) broadcasts."""
    # PyTorch leaves lazy conjugation and negation to this operator.
    a = matrices(plain(a).expand(*x.shape[:-2], *a.shape[-2:]))
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
