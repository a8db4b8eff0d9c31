"""Singular values and singular vectors: Jacobi's method."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.svd import lower_svd

from .batches import by_columns, matrices, natively, vectors
from .eigh import largest

MOST_COMPLETED = 64
"""Singular vectors of one matrix that are found without a singular value; more of them are found on the CPU."""


def svd(
    a: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if driver is not None or a.dim() < 2:
        check_as_cpu(aten._linalg_svd.default, a, full_matrices, compute_uv, driver=driver)  # raises
    *batch, m, n = a.shape
    k = min(m, n)
    reason = why_not(a, full_matrices and compute_uv)
    if reason:
        return run_on_cpu(aten._linalg_svd.default, (a, full_matrices, compute_uv), {}, reason)
    s = torch.empty((*batch, k), dtype=a.dtype.to_real(), device=a.device)
    outputs = []
    u = vh = a.new_empty(0)
    if compute_uv:
        u = by_columns((*batch, m, m if full_matrices else k), a.dtype, a)
        vh = by_columns((*batch, n if full_matrices else k, n), a.dtype, a)
        left, right = matrices(u), matrices(vh).mT
        outputs = [left, right] if m >= n else [right, left]
    if s.numel():
        tall = matrices(a) if m >= n else matrices(a).mT
        record_kernel("aten::_linalg_svd", [tall], [vectors(s), *outputs], Extern(lower_svd))
    elif compute_uv:
        for t in (u, vh):
            t.copy_(torch.eye(t.shape[-2], t.shape[-1], dtype=t.dtype, device=t.device).expand(t.shape))
    return u, s, vh


def why_not(a: torch.Tensor, full: bool) -> str:
    """Why matrices are decomposed on the CPU; empty if they are not."""
    m, n = max(a.shape[-2:]), min(a.shape[-2:])
    if m > largest(a):
        return f"no kernel decomposes matrices of {m} by {n}"
    if full and m - n > MOST_COMPLETED:
        return f"no kernel completes {n} singular vectors of {m} elements to a basis"
    return ""


def register() -> None:
    register_operator(aten._linalg_svd.default, natively(aten._linalg_svd.default, svd))
