"""Cholesky factorization, and what is solved and inverted with it: halves, down to some that a dispatch for each block
of columns factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Strided
from torch_webgpu.aten.dispatch.torch_abi import aten, infer, outputs_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.cholesky import BLOCK, lower_cholesky, lower_cholesky_step, width_of
from torch_webgpu.kernels.linalg.triangular import Triangle
from torch_webgpu.target import Target

from .batches import by_columns, copied_by_columns, infos, matrices, natively, subtract_product
from .triangular import half_of, solve_in_place, solve_into

MOST_ROWS = 2048
"""Rows of what is factored block by block. Each block reads and writes all that is left; products of halves do not."""


def is_stepwise(n: int, target: Target) -> bool:
    """Whether matrices are factored block by block: few dispatches, with many barriers, which CPUs have to imitate."""
    return n <= MOST_ROWS and not target.software


def factor_in_place(a: torch.Tensor, info: torch.Tensor, first: int = 0) -> None:
    """The lower triangle of (batch, n, n), rows from ``first`` on of whole matrices, becomes its factor. What is above
    it may be overwritten.
    """
    n = a.shape[1]
    if n <= BLOCK:
        record_kernel("aten::linalg_cholesky_ex", (a, info), (a, info), Extern(lower_cholesky, (first,)))
        return
    if is_stepwise(n, engine().device(a.get_device()).target):
        factor_by_blocks(a, info, first)
        return
    half = half_of(n, BLOCK)
    below = a[:, half:, :half]
    factor_in_place(a[:, :half, :half], info, first)
    # below = below L^-H, so that conj(L) belowᵀ = belowᵀ
    solve_in_place(a[:, :half, :half], below.mT, Triangle(conjugated=a.is_complex()))
    rows = below.clone()
    subtract_product(a[:, half:, half:], rows, rows.mH)
    factor_in_place(a[:, half:, half:], info, first + half)


def factor_by_blocks(a: torch.Tensor, info: torch.Tensor, first: int) -> None:
    """The same, block by block of columns: what is left of the matrices is in memory of its own."""
    n, width, work = a.shape[1], width_of(a.element_size()), copied_by_columns(a)
    factor_in_place(a[:, :width, :width], info, first)
    for start in range(0, n - width, width):
        written = work[:, start:, start:], a[:, start:, start:], info
        record_kernel("aten::linalg_cholesky_ex", written, written, Extern(lower_cholesky_step, (first + start,)))


def factor(out: torch.Tensor, a: torch.Tensor, upper: bool) -> torch.Tensor:
    """Writes the factor of ``a`` into a new tensor by columns; returns the infos."""
    info = infos(a.shape[:-2], a)
    if out.numel():
        out.copy_(a)
        work = matrices(out)
        # Transposed, an upper triangle is the lower one of the conjugate, whose factor is the upper one's transpose.
        factor_in_place(work.mT if upper else work, info.reshape(-1))
        out.triu_() if upper else out.tril_()
    return info


def cholesky_ex(
    self: torch.Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    out, _ = outputs_of(aten.linalg_cholesky_ex.default, self, upper=upper)
    info = factor(out, self, upper)
    if check_errors:
        torch._linalg_check_errors(info, "linalg.cholesky_ex", is_matrix=self.dim() == 2)
    return out, info


def cholesky(self: torch.Tensor, upper: bool = False) -> torch.Tensor:
    (out,) = outputs_of(aten.cholesky.default, self, upper)
    if out.numel():
        info = factor(out, self, upper)
        torch._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
    return out


def solve_with_factor(x: torch.Tensor, a: torch.Tensor, upper: bool) -> torch.Tensor:
    """Solves with the matrix whose factor is ``a``, where the new tensor ``x`` has the right-hand sides."""
    lower = a.mH if upper else a
    solve_into(x, lower, Triangle())
    return solve_into(x, lower.mH, Triangle(upper=True))


def cholesky_solve_helper(self: torch.Tensor, A: torch.Tensor, upper: bool) -> torch.Tensor:
    (x,) = outputs_of(aten._cholesky_solve_helper.default, self, A, upper)
    return solve_with_factor(x.copy_(self), A, upper)


def cholesky_inverse(self: torch.Tensor, upper: bool = False) -> torch.Tensor:
    infer(aten.cholesky_inverse.default, self, upper)
    x = by_columns(self.shape, self.dtype, self)
    if x.numel():
        x.copy_(torch.eye(self.shape[-1], dtype=self.dtype, device=self.device))
        solve_with_factor(x, self, upper)
        is_zero = self.diagonal(dim1=-2, dim2=-1) == 0
        place = torch.arange(1, self.shape[-1] + 1, device=self.device, dtype=torch.int32)
        first = torch.where(is_zero, place, self.shape[-1] + 1).amin(-1)
        info = torch.where(is_zero.any(-1), first, 0)
        torch._linalg_check_errors(info, "cholesky_inverse", is_matrix=self.dim() == 2)
    return x


STRIDED: dict[Callable[..., Any], tuple[OpOverload, Strided]] = {
    cholesky_ex: (aten.linalg_cholesky_ex.default, "resized"),
    cholesky_solve_helper: (aten._cholesky_solve_helper.default, "never"),
    cholesky_inverse: (aten.cholesky_inverse.default, "empty"),
}
"""Which operator a function computes, and which of its ``out=`` tensors get a result's strides."""
if hasattr(aten, "cholesky"):  # not from PyTorch 2.14 on
    STRIDED[cholesky] = aten.cholesky.default, "never"


def register() -> None:
    for kernel, (target, strided) in STRIDED.items():
        register_operator(target, natively(target, kernel), strided=strided)
