"""Factorization of symmetric and Hermitian indefinite matrices (Bunch and Kaufman), and what it solves."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.ldl import lower_ldl, lower_ldl_columns
from torch_webgpu.kernels.linalg.triangular import Triangle

from .batches import copied_by_columns, infos, matrices, natively, vectors
from .lu import interchange
from .triangular import solve_in_place


def ldl_factor_ex(
    self: torch.Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ld, pivots, _ = outputs_of(aten.linalg_ldl_factor_ex.default, self, hermitian=hermitian)
    info = infos(self.shape[:-2], self)
    if ld.numel():
        ld.copy_(self.tril())
        if hermitian and self.is_complex():
            diagonal = ld.diagonal(dim1=-2, dim2=-1)
            diagonal.copy_(diagonal.real)
        written = matrices(ld), vectors(pivots), info.reshape(-1)
        record_kernel("aten::linalg_ldl_factor_ex", written, written, Extern(lower_ldl, (hermitian,)))
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.ldl_factor_ex", is_matrix=self.dim() == 2)
    return ld, pivots, info


def ldl_solve(LD: torch.Tensor, pivots: torch.Tensor, B: torch.Tensor, *, hermitian: bool = False) -> torch.Tensor:
    (out,) = outputs_of(aten.linalg_ldl_solve.default, LD, pivots, B, hermitian=hermitian)
    if not out.numel():
        return out
    batch, n = out.shape[:-2], LD.shape[-1]
    ld, pivots = LD.expand(*batch, n, n), vectors(pivots.expand(*batch, n).contiguous())
    x, lower, diagonal = matrices(out.copy_(B)), matrices(copied_by_columns(ld)), matrices(ld)
    record_kernel("aten::linalg_ldl_solve", (pivots, lower), (lower,), Extern(lower_ldl_columns))
    of_two = pivots < 0
    # Negative pivots come in pairs.
    second = of_two & (of_two.cumsum(-1) % 2 == 0)
    order = torch.where(of_two & ~second, torch.arange(1, n + 1, dtype=torch.int32, device=x.device), pivots.abs())
    interchange(order, x, 0, n)
    solve_in_place(lower, x, Triangle(unit=True))
    x.copy_(solve_blocks(diagonal, of_two, second, x, hermitian))
    solve_in_place(lower.mT, x, Triangle(upper=True, unit=True, conjugated=hermitian and x.is_complex()))
    interchange(order, x, 0, n, backwards=True)
    return out


def solve_blocks(
    ld: torch.Tensor, of_two: torch.Tensor, second: torch.Tensor, x: torch.Tensor, hermitian: bool
) -> torch.Tensor:
    """Solves with blocks of one row and of two, of (batch, n, n), where ``x`` (batch, n, columns) has the right-hand
    sides. ``of_two`` (batch, n): which rows are in blocks of two; ``second``: which of these are the second.
    """
    own = ld.diagonal(dim1=-2, dim2=-1)
    below = torch.nn.functional.pad(ld.diagonal(-1, dim1=-2, dim2=-1), (0, 1))
    # Of each row the other row of its block, and what stands in its place beside the diagonal.
    beside = torch.where(second, below.roll(1, -1), below)
    across = torch.where(second, own.roll(1, -1), own.roll(-1, -1))
    partner = torch.where(second[..., None], x.roll(1, -2), x.roll(-1, -2))
    divisor = other = beside
    if hermitian and x.is_complex():
        divisor, other = torch.where(second, beside.conj(), beside), torch.where(second, beside, beside.conj())
    # Both sides are divided by what stands beside the diagonal, as LAPACK does: nothing overflows that need not.
    denominator = (own / other) * (across / divisor) - 1
    pair = ((across / other)[..., None] * x - partner) / (divisor * denominator)[..., None]
    return torch.where(of_two[..., None], pair, x / own[..., None])


def register() -> None:
    for target, kernel in (
        (aten.linalg_ldl_factor_ex.default, ldl_factor_ex),
        (aten.linalg_ldl_solve.default, ldl_solve),
    ):
        register_operator(target, natively(target, kernel), strided="resized")
