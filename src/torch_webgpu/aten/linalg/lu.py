"""LU factorization with partial pivoting, and what it solves: halves of the columns, down to one workgroup's panels."""

from __future__ import annotations

from dataclasses import replace

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.lu import PANEL, fits, lower_interchange, lower_lu, lower_permutation
from torch_webgpu.kernels.linalg.triangular import Triangle

from .batches import by_columns, infos, matrices, natively, subtract_product, vectors
from .triangular import half_of, solve_in_place

LOWER, UPPER = Triangle(unit=True), Triangle(upper=True)


def factor_in_place(
    a: torch.Tensor, pivots: torch.Tensor, info: torch.Tensor, pivot: bool, first: int = 0, columns: int | None = None
) -> None:
    """``columns`` columns of (batch, m, n), from row and column ``first`` on, become their factors."""
    _, m, n = a.shape
    columns = n - first if columns is None else columns
    panel = a[:, first:, first : first + columns]
    if fits(m - first, columns, a.element_size()):
        written, kernel = (panel, pivots, info), Extern(lower_lu, (first, pivot))
        record_kernel("aten::linalg_lu_factor_ex", written, written, kernel)
        return
    steps = min(m - first, columns)
    left = steps if steps < columns else half_of(columns, PANEL)
    middle, end = first + left, first + columns
    factor_in_place(a, pivots, info, pivot, first, left)
    right = a[:, first:, middle:end]
    if pivot:
        interchange(pivots, right, first, left)
    solve_in_place(a[:, first:middle, first:middle], right[:, :left], LOWER)
    if middle < m:
        subtract_product(right[:, left:], a[:, middle:, first:middle], right[:, :left])
        factor_in_place(a, pivots, info, pivot, middle, end - middle)
        if pivot:
            interchange(pivots, a[:, middle:, first:middle], middle, min(m, end) - middle)


def interchange(pivots: torch.Tensor, rows: torch.Tensor, first: int, steps: int, backwards: bool = False) -> None:
    """Interchanges rows in place, those from ``first`` on of whole matrices."""
    if rows.numel() and steps:
        kernel = Extern(lower_interchange, (first, steps, backwards))
        record_kernel("aten::linalg_lu_solve", (pivots, rows), (rows,), kernel)


def factor(lu: torch.Tensor, pivots: torch.Tensor, a: torch.Tensor, pivot: bool = True) -> torch.Tensor:
    """Writes the factors of ``a`` and their pivots into new tensors; returns the infos."""
    info = infos(a.shape[:-2], a)
    if lu.numel():
        lu.copy_(a)
        factor_in_place(matrices(lu), vectors(pivots), info.reshape(-1), pivot)
    return info


def lu_factor_ex(
    A: torch.Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lu, pivots, _ = outputs_of(aten.linalg_lu_factor_ex.default, A, pivot=pivot)
    info = factor(lu, pivots, A, pivot)
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.lu_factor_ex", is_matrix=A.dim() == 2)
    return lu, pivots, info


def lu_unpack(
    LU_data: torch.Tensor, LU_pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p, lower, upper = outputs_of(aten.lu_unpack.default, LU_data, LU_pivots, unpack_data, unpack_pivots)
    m, n = LU_data.shape[-2:]
    k = min(m, n)
    if unpack_data:
        unit = torch.eye(m, k, dtype=LU_data.dtype, device=LU_data.device)
        lower.copy_(LU_data[..., :, :k].tril(-1) + unit)
        upper.copy_(LU_data[..., :k, :].triu())
    if unpack_pivots:
        p.copy_(permutation_matrix(LU_pivots, m))
    return p, lower, upper


def permutation_matrix(pivots: torch.Tensor, m: int) -> torch.Tensor:
    """(…, n) → (…, m, m) of booleans: column i has its one in the row where row i of the factors was."""
    rows = pivots.new_empty((*pivots.shape[:-1], m))
    if not rows.numel():
        return rows.unsqueeze(-2) == rows.unsqueeze(-1)
    if pivots.shape[-1]:
        record_kernel("aten::lu_unpack", (vectors(pivots),), (vectors(rows),), Extern(lower_permutation))
    else:
        rows.copy_(torch.arange(m, device=pivots.device))
    return torch.arange(m, device=pivots.device, dtype=torch.int32).unsqueeze(-1) == rows.unsqueeze(-2)


def lu(A: torch.Tensor, *, pivot: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p, lower, upper = outputs_of(aten.linalg_lu.default, A, pivot=pivot)
    factors, pivots, _ = lu_factor_ex(A, pivot=pivot)
    found = lu_unpack(factors, pivots, True, pivot)
    lower.copy_(found[1])
    upper.copy_(found[2])
    return p.copy_(found[0]) if pivot else p, lower, upper


def solve_with_factors(x: torch.Tensor, lu: torch.Tensor, pivots: torch.Tensor, left: bool, adjoint: bool) -> None:
    """Solves with (batch, n, n) factors, where ``x`` (batch, …) has the right-hand sides."""
    n = lu.shape[-1]
    if not x.numel():
        return
    lower, upper = LOWER, UPPER
    if adjoint and lu.is_complex():
        lower, upper = replace(lower, conjugated=True), replace(upper, conjugated=True)
    if not left:
        x = x.mT
    if adjoint == left:  # by the transpose: Uᵀ Lᵀ Pᵀ
        solve_in_place(lu.mT, x, replace(upper, upper=False))
        solve_in_place(lu.mT, x, replace(lower, upper=True))
        interchange(pivots, x, 0, n, backwards=True)
    else:
        interchange(pivots, x, 0, n)
        solve_in_place(lu, x, lower)
        solve_in_place(lu, x, upper)


def lu_solve(
    LU: torch.Tensor, pivots: torch.Tensor, B: torch.Tensor, *, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    (out,) = outputs_of(aten.linalg_lu_solve.default, LU, pivots, B, left=left, adjoint=adjoint)
    if out.numel():
        out.copy_(B)
        batch = out.shape[:-2]
        lu3 = matrices(LU.resolve_conj().expand(*batch, *LU.shape[-2:]))
        solve_with_factors(matrices(out), lu3, vectors(pivots.expand(*batch, pivots.shape[-1])), left, adjoint)
    return out


def solve_ex(
    A: torch.Tensor, B: torch.Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    result, lu, pivots, _ = outputs_of(aten._linalg_solve_ex.default, A, B, left=left)
    info = factor(lu, pivots, A)
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if is_vector else B
    whole = result.unsqueeze(-1) if is_vector else result
    if result.numel():
        batch = whole.shape[:-2]
        x = by_columns(whole.shape, A.dtype, A) if left else torch.empty(whole.shape, dtype=A.dtype, device=A.device)
        x.copy_(right)
        lu3 = matrices(lu.expand(*batch, *lu.shape[-2:]))
        solve_with_factors(matrices(x), lu3, vectors(pivots.expand(*batch, pivots.shape[-1])), left, False)
        if x.shape == result.shape and x.stride() == result.stride():
            result = x
        else:
            whole.copy_(x)
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.solve_ex", is_matrix=A.dim() == 2)
    return result, lu, pivots, info


def inv_ex(A: torch.Tensor, *, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    out, _ = outputs_of(aten.linalg_inv_ex.default, A)
    lu, pivots = by_columns(A.shape, A.dtype, A), A.new_empty(A.shape[:-1], dtype=torch.int32)
    info = factor(lu, pivots, A)
    if out.numel():
        # By columns, as substitution reads: in the result's rows it would take up to five times as long.
        x = by_columns(A.shape, A.dtype, A).copy_(torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))
        solve_with_factors(matrices(x), matrices(lu), vectors(pivots), True, False)
        out.copy_(x)
    if check_errors:
        torch._linalg_check_errors(info, "linalg.inv_ex", is_matrix=A.dim() == 2)
    return out, info


def register() -> None:
    for target, kernel in (
        (aten.linalg_lu_factor_ex.default, lu_factor_ex),
        (aten.lu_unpack.default, lu_unpack),
        (aten.linalg_lu.default, lu),
        (aten.linalg_lu_solve.default, lu_solve),
        (aten._linalg_solve_ex.default, solve_ex),
        (aten.linalg_inv_ex.default, inv_ex),
    ):
        register_operator(target, natively(target, kernel), strided="resized")
