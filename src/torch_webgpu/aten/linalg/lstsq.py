"""Least squares: by QR factorization for LAPACK's driver "gels", by singular values for those that find a rank."""

from __future__ import annotations

from math import prod

import torch

from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.engine.record import engine

from .batches import natively

DRIVERS = ("gels", "gelsy", "gelsd", "gelss")
Found = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Found:
    """The solution, squared residuals, ranks and singular values; those that a driver does not find are empty.

    "gelsd" and "gelss" wait for the ranks of tall matrices: of those that are not full PyTorch gives no residuals.
    """
    is_vector = a.dim() - b.dim() == 1
    columns = b.unsqueeze(-1) if is_vector else b
    if not is_solvable(a, columns, driver):
        check_as_cpu(aten.linalg_lstsq.default, a, b, rcond, driver=driver)
    driver = driver or "gelsy"
    batch = torch.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    a, columns = a.expand(*batch, *a.shape[-2:]), columns.expand(*batch, *columns.shape[-2:])
    (m, n), width = a.shape[-2:], columns.shape[-1]
    solution = solution_of(batch, m, n, width, a)
    ranks, values = torch.zeros(batch, dtype=torch.int64, device=a.device), a.new_empty(0, dtype=a.dtype.to_real())
    if min(m, n, prod(batch), width) == 0:
        solution.zero_()
        values = a.new_zeros((*batch, min(m, n)), dtype=values.dtype)
    elif driver == "gels":
        is_zero = (a == 0).flatten(-2).all(-1)[..., None, None]  # what LAPACK looks at; its solution is zero
        solution.copy_(of_full_rank(a, columns).masked_fill(is_zero, 0))
    else:
        found, ranks, values = of_any_rank(a, columns, rcond)
        solution.copy_(found)
    residuals = values.new_empty(0)
    has_full_ranks = driver == "gels" or (driver in ("gelsd", "gelss") and m > n and bool((ranks == n).all()))
    if m > n and has_full_ranks:
        difference = a @ solution - columns
        residuals = (difference.abs() if a.is_complex() else difference).square().sum(-2)
        if not n and driver == "gels":
            residuals.zero_()  # what LAPACK says of matrices without columns
    if driver == "gels":
        ranks = ranks.new_empty(0)
    return (
        solution.squeeze(-1) if is_vector else solution,
        residuals,
        ranks,
        values if driver in ("gelsd", "gelss") else values.new_empty(0),
    )


def is_solvable(a: torch.Tensor, columns: torch.Tensor, driver: str | None) -> bool:
    """Whether PyTorch has nothing against them, but for batches that cannot be broadcast."""
    have_rows = a.dim() >= 2 and a.dim() == columns.dim() and a.shape[-2] == columns.shape[-2]
    return have_rows and a.dtype == columns.dtype and (driver is None or driver in DRIVERS)


def solution_of(batch: torch.Size, m: int, n: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """A new tensor (…, n, width) that lies as LAPACK's: by columns, of as many rows as the longer side has."""
    rows = max(m, n, 1)
    strides = [1] * len(batch)
    step = rows * width
    for k in reversed(range(len(batch))):
        strides[k] = max(step, 1)
        step *= batch[k]
    return engine().empty((*batch, n, width), like.dtype, like.get_device(), (*strides, 1, rows))


def of_full_rank(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The least squares solution of tall matrices, the shortest solution of wide ones."""
    if a.shape[-2] >= a.shape[-1]:
        q, r = torch.linalg.qr(a)
        return torch.linalg.solve_triangular(r, q.mH @ b, upper=True)
    q, r = torch.linalg.qr(a.mH)
    return q @ torch.linalg.solve_triangular(r.mH, b, upper=False)


def of_any_rank(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The shortest least squares solution, ranks and singular values. Singular values that are at most ``rcond`` times
    the largest one count as zero.
    """
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    epsilon = torch.finfo(a.dtype).eps
    least = epsilon if rcond is not None and rcond < 0 else epsilon * max(a.shape[-2:]) if rcond is None else rcond
    counts = s > least * s[..., :1]
    inverse = torch.where(counts, 1 / s, 0.0).unsqueeze(-1)
    return vh.mH @ ((u.mH @ b) * inverse), counts.sum(-1), s


def register() -> None:
    register_operator(aten.linalg_lstsq.default, natively(aten.linalg_lstsq.default, lstsq))
