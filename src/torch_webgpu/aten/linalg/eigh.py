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
from torch_webgpu.kernels.linalg.eigh import is_small, lower_eigh

from .batches import by_columns, copied_by_columns, matrices, natively, product, vectors

MOST, MOST_IN_SOFTWARE = 2048, 128
"""Rows of a matrix; larger ones are the CPU's."""


def eigh(a: torch.Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    (shape, _, dtype), _ = infer(aten._linalg_eigh.default, a, UPLO, compute_v)
    n, target = a.shape[-1], engine().device(a.get_device()).target
    if n > largest(a):
        reason = f"no kernel computes eigenvalues of {n} rows"
        return run_on_cpu(aten._linalg_eigh.default, (a, UPLO, compute_v), {}, reason)
    upper, in_blocks = UPLO.upper() == "U", not is_small(dtype_of(a.dtype).name, n, target)
    values = torch.empty(shape, dtype=dtype, device=a.device)
    v = by_columns(a.shape, a.dtype, a) if compute_v or in_blocks else a.new_empty(0)
    if a.numel():
        outputs = [vectors(values), *([matrices(v)] if v.numel() else [])]
        record_kernel("aten::_linalg_eigh", [matrices(a)], outputs, Extern(lower_eigh, (upper,)))
    if in_blocks:
        values, v = mended(a, upper, v)
    return values, v if compute_v else a.new_empty(0)


def mended(a: torch.Tensor, upper: bool, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues from eigenvectors (Rayleigh's quotients), in whose errors theirs are squares; both in their order."""
    triangle = (a.mH if upper else a).tril()
    full = triangle + triangle.tril(-1).mH
    image = product(matrices(full), matrices(v)).view_as(v)
    values, order = (v.conj() * image).real.sum(-2).sort(-1)
    return values, copied_by_columns(v.gather(-1, order.unsqueeze(-2).expand(v.shape)))


def largest(a: torch.Tensor) -> int:
    """The most rows, or columns, of matrices that the device decomposes sooner than the CPU."""
    return MOST_IN_SOFTWARE if engine().device(a.get_device()).target.software else MOST


def register() -> None:
    register_operator(aten._linalg_eigh.default, natively(aten._linalg_eigh.default, eigh))
