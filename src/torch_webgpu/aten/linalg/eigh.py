"""Eigenvalues and eigenvectors of Hermitian matrices: Jacobi's method."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, infer
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.linalg.eigh import lower_eigh, small

from .batches import by_columns, matrices, natively, vectors


def eigh(a: torch.Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    (shape, _, dtype), _ = infer(aten._linalg_eigh.default, a, UPLO, compute_v)
    n = a.shape[-1]
    if not small(dtype_of(a.dtype).name, n, compute_v).fits(engine().device(a.get_device()).target):
        reason = f"no kernel computes eigenvalues of {n} rows"
        return run_on_cpu(aten._linalg_eigh.default, (a, UPLO, compute_v), {}, reason)
    values = torch.empty(shape, dtype=dtype, device=a.device)
    v = by_columns(a.shape, a.dtype, a) if compute_v else a.new_empty(0)
    if a.numel():
        outputs = [vectors(values), *([matrices(v)] if compute_v else [])]
        record_kernel("aten::_linalg_eigh", [matrices(a)], outputs, Extern(lower_eigh, (UPLO.upper() == "U",)))
    return values, v


def register() -> None:
    register_operator(aten._linalg_eigh.default, natively(aten._linalg_eigh.default, eigh))
