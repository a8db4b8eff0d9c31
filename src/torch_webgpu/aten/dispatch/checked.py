"""Errors that depend on values: flagged by a kernel, raised at the next wait, in the words of ``engine/sync.py``."""

from __future__ import annotations

import torch

from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.checked import lower_checked

from .operations import record_kernel


def checked(operator: str, result: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    """``result``, dense, with an error of ``operator`` if the number ``code`` is not 0; negative: its other error.

    The error belongs to what is returned, so that it comes where and only where that is computed.
    """
    if not result.numel():
        return result
    out = torch.empty_like(result)
    numel = (result.numel(),)
    flat = [t.as_strided(numel, (1,), t.storage_offset()) for t in (result, out)]
    record_kernel(f"aten::{operator}", [flat[0], code.to(torch.int32).view(1)], [flat[1]], Extern(lower_checked))
    return out
