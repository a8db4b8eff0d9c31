"""LU factorization with partial pivoting, and what it solves: halves of the columns, down to some that a dispatch for
each block of them factors, or down to one workgroup's panels.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.lu import (
    PANEL,
    fits,
    lower_interchange,
    lower_lu,
    lower_permutation,
    registers,
)
from torch_webgpu.kernels.linalg.lu_steps import block_width, lower_lu_order, lower_lu_step
from torch_webgpu.kernels.linalg.triangular import Triangle
from torch_webgpu.target import Target

from .batches import by_columns, copied_by_columns, infos, matrices, natively, subtract_product, vectors
from .triangular import half_of, solve_in_place, solve_twice_in_place

LOWER, UPPER = Triangle(unit=True), Triangle(upper=True)


MOST_COLUMNS = 2048
"""Of what is factored block by block. Each block reads and writes all that is left; products of halves do not."""


def is_stepwise(rows: int, columns: int, dtype: torch.dtype, target: Target) -> bool:
    """Whether matrices are factored block by block: few dispatches, with many barriers, which CPUs have to imitate. The
    others are those whose blocks a workgroup's registers have no room for.
    """
    return columns <= MOST_COLUMNS and not target.software and block_width(dtype_of(dtype).name, rows, target) > 0


def factor_in_place(
    a: torch.Tensor, pivots: torch.Tensor, info: torch.Tensor, pivot: bool, first: int = 0, columns: int | None = None
) -> torch.Tensor | None:
    """``columns`` columns of (batch, m, n), from row and column ``first`` on, become their factors. Returns which of
    these rows is in each place of the factors, (batch, rows), if that is known besides the pivots.
    """
    _, m, n = a.shape
    columns = n - first if columns is None else columns
    panel = a[:, first:, first : first + columns]
    target, dtype = engine().device(a.get_device()).target, dtype_of(a.dtype).name
    stepwise = is_stepwise(m - first, columns, a.dtype, target)
    # A panel that is too tall for registers takes one workgroup long.
    is_tall = columns <= PANEL and registers(dtype, m - first, columns, target) is None
    if fits(m - first, columns, a.element_size()) and not (stepwise and is_tall):
        written, kernel = (panel, pivots, info), Extern(lower_lu, (first, pivot))
        record_kernel("aten::linalg_lu_factor_ex", written, written, kernel)
        return None
    if stepwise:
        return factor_by_blocks(copied_by_columns(panel), panel, pivots, info, pivot, first)
    steps = min(m - first, columns)
    left = steps if steps < columns else half_of(columns, PANEL)
    middle, end = first + left, first + columns
    order = factor_in_place(a, pivots, info, pivot, first, left)
    right = a[:, first:, middle:end]
    if pivot:
        interchange(pivots, right, first, left, order=order)
    solve_in_place(a[:, first:middle, first:middle], right[:, :left], LOWER)
    if middle < m:
        subtract_product(right[:, left:], a[:, middle:, first:middle], right[:, :left])
        order = factor_in_place(a, pivots, info, pivot, middle, end - middle)
        if pivot:
            interchange(pivots, a[:, middle:, first:middle], middle, min(m, end) - middle, order=order)
    return None


def factor_by_blocks(
    work: torch.Tensor, a: torch.Tensor, pivots: torch.Tensor, info: torch.Tensor, pivot: bool, first: int = 0
) -> torch.Tensor:
    """Writes the factors of ``work`` (batch, m, n), which is overwritten, to ``a``. Returns which row of the matrices
    is in each place of the factors: (batch, m).
    """
    _, m, n = work.shape
    target, name = engine().device(a.get_device()).target, dtype_of(a.dtype).name
    start = depth = 0
    order: torch.Tensor | None = None
    while start + depth < min(m, n):
        kernel = Extern(lower_lu_step, (first, start, depth, pivot))
        new_order = pivots.new_empty((work.shape[0], m))
        read = (work, a, pivots, info) if order is None else (work, a, order, pivots, info)
        record_kernel("aten::linalg_lu_factor_ex", read, (work, a, new_order, pivots, info), kernel)
        start, order = start + depth, new_order
        depth = min(block_width(name, m - start, target), min(m, n) - start)
    assert order is not None
    if m < n:
        kernel = Extern(lower_lu_step, (first, start, depth, pivot))
        record_kernel("aten::linalg_lu_factor_ex", (work, a, order), (work, a), kernel)
    record_kernel("aten::linalg_lu_factor_ex", (order, work, a), (a,), Extern(lower_lu_order, (True,)))
    return order


def interchange(
    pivots: torch.Tensor,
    rows: torch.Tensor,
    first: int,
    steps: int,
    backwards: bool = False,
    order: torch.Tensor | None = None,
) -> None:
    """Interchanges rows in place, those from ``first`` on of whole matrices; at once, if the ``order`` that they get is
    known.
    """
    if not rows.numel() or not steps:
        return
    if order is not None:
        put_in_order(rows, order, copied_by_columns(rows))
        return
    kernel = Extern(lower_interchange, (first, steps, backwards))
    record_kernel("aten::linalg_lu_solve", (pivots, rows), (rows,), kernel)


def put_in_order(ordered: torch.Tensor, order: torch.Tensor, rows: torch.Tensor) -> None:
    """Writes the rows of matrices to others, in an order (batch, rows) of them."""
    record_kernel("aten::linalg_lu_solve", (order, rows), (ordered,), Extern(lower_lu_order, (False,)))


def factor(
    lu: torch.Tensor, pivots: torch.Tensor, a: torch.Tensor, pivot: bool = True
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Writes the factors of ``a`` and their pivots into new tensors. Returns the infos, and which of its rows is in
    each place of the factors, (batch, m), if that is known besides the pivots.
    """
    info = infos(a.shape[:-2], a)
    if not lu.numel():
        return info, None
    lu.copy_(a)
    return info, factor_in_place(matrices(lu), vectors(pivots), info.reshape(-1), pivot)


def lu_factor_ex(
    A: torch.Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lu, pivots, _ = outputs_of(aten.linalg_lu_factor_ex.default, A, pivot=pivot)
    info, _ = factor(lu, pivots, A, pivot)
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


def solve_with_factors(
    x: torch.Tensor, lu: torch.Tensor, pivots: torch.Tensor, left: bool, adjoint: bool, ordered: bool = False
) -> None:
    """Solves with (batch, n, n) factors, where ``x`` (batch, …) has the right-hand sides, whose rows may be ``ordered``
    as the pivots say already.
    """
    n = lu.shape[-1]
    if not x.numel():
        return
    lower, upper = LOWER, UPPER
    if adjoint and lu.is_complex():
        lower, upper = replace(lower, conjugated=True), replace(upper, conjugated=True)
    if not left:
        x = x.mT
    if adjoint == left:  # by the transpose: Uᵀ Lᵀ Pᵀ
        solve_twice_in_place(lu.mT, x, replace(upper, upper=False), replace(lower, upper=True))
        interchange(pivots, x, 0, n, backwards=True)
    else:
        if not ordered:
            interchange(pivots, x, 0, n)
        solve_twice_in_place(lu, x, lower, upper)


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
    info, order = factor(lu, pivots, A)
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if is_vector else B
    whole = result.unsqueeze(-1) if is_vector else result
    if result.numel():
        batch = whole.shape[:-2]
        x = by_columns(whole.shape, A.dtype, A) if left else torch.empty(whole.shape, dtype=A.dtype, device=A.device)
        if not left or batch != A.shape[:-2]:
            order = None
        if order is None:
            x.copy_(right)
        else:
            put_in_order(matrices(x), order, matrices(right.resolve_conj().expand(whole.shape)))
        lu3 = matrices(lu.expand(*batch, *lu.shape[-2:]))
        pivots2 = vectors(pivots.expand(*batch, pivots.shape[-1]))
        solve_with_factors(matrices(x), lu3, pivots2, left, False, order is not None)
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
    info, order = factor(lu, pivots, A)
    if out.numel():
        # By columns, as substitution reads: in the result's rows it would take up to five times as long.
        x = by_columns(A.shape, A.dtype, A)
        if order is None:
            x.copy_(torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))
        else:
            column = torch.arange(A.shape[-1], dtype=torch.int32, device=A.device)
            x.copy_(order.reshape(A.shape[:-1]).unsqueeze(-1) == column)
        solve_with_factors(matrices(x), matrices(lu), vectors(pivots), True, False, order is not None)
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
