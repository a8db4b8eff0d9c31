"""Eigenvalues and eigenvectors of general matrices, in LAPACK's order: QR iterations of Hessenberg matrices."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, infer
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.eig import lower_eig

from .batches import by_columns, matrices, natively, vectors

MOST, MOST_IN_SOFTWARE = 512, 128
"""Rows of a matrix; larger ones are the CPU's."""


def eig(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (shape, _, dtype), _ = infer(aten.linalg_eig.default, self)
    if reason := why_not(self):
        return run_on_cpu(aten.linalg_eig.default, (self,), {}, reason)
    values = torch.empty(shape, dtype=dtype, device=self.device)
    v = by_columns(self.shape, dtype, self)
    if self.numel():
        record_kernel("aten::linalg_eig", [matrices(self)], [vectors(values), matrices(v)], Extern(lower_eig))
    return values, v


def eigvals(self: torch.Tensor) -> torch.Tensor:
    ((shape, _, dtype),) = infer(aten._linalg_eigvals.default, self)
    if reason := why_not(self):
        return run_on_cpu(aten._linalg_eigvals.default, (self,), {}, reason)
    values = torch.empty(shape, dtype=dtype, device=self.device)
    if self.numel():
        record_kernel("aten::_linalg_eigvals", [matrices(self)], [vectors(values)], Extern(lower_eig))
    return values


def why_not(a: torch.Tensor) -> str:
    """Why matrices are the CPU's; empty if they are not."""
    if a.dtype == torch.float64:
        return "no kernel computes in complex128, which its eigenvalues are"
    most = MOST_IN_SOFTWARE if engine().device(a.get_device()).target.software else MOST
    return f"no kernel computes eigenvalues of {a.shape[-1]} rows" if a.shape[-1] > most else ""


def register() -> None:
    register_operator(aten.linalg_eig.default, natively(aten.linalg_eig.default, eig), strided="resized")
    register_operator(aten._linalg_eigvals.default, natively(aten._linalg_eigvals.default, eigvals))
