"""The 8-bit floats, as on the CPU: stored, converted from and to every other type, and moved about; no arithmetic.

Kernels see their codes, as uint8.
"""

from __future__ import annotations

from functools import cache

import torch

from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.dtypes import BY_TORCH, STORED
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

NAMES = {dtype: row.name for dtype, row in STORED.items() if dtype.is_floating_point and row.bits == 8}


@cache
def overflow_limit(dtype: torch.dtype) -> float | None:
    """Where numbers too large for ``dtype`` end up, if they become finite ones: float8_e4m3fn's do in later PyTorch."""
    largest = torch.full((), torch.inf, dtype=torch.float32, device="cpu").to(dtype).float()
    return largest.item() if largest.isfinite() else None


def converts(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether :func:`convert` knows how, of two dtypes of which one is an 8-bit float."""
    known = {source, target} - NAMES.keys()
    return len(known) < 2 and known <= BY_TORCH.keys()


def convert(source: torch.Tensor, target: torch.Tensor) -> None:
    """Writes one's numbers to the other, both of one shape and device."""
    read, written = NAMES.get(source.dtype), NAMES.get(target.dtype)
    limit = overflow_limit(target.dtype) if written else None
    tensors = [t.view(torch.uint8) if t.dtype in NAMES else t for t in (source, target)]
    record_pointwise("convert_float8", tensors[:1], tensors[1:], converted, (read, written, limit))


def converted(read: str | None, written: str | None, limit: float | None, value: Expr) -> Expr:
    """A number of the 8-bit type ``read``, or of another one, as one of the 8-bit type ``written``, or as it is."""
    value = decoded(value, read) if read else ops.to_dtype(value, "f32") if written else value
    return encoded(value, written, limit) if written else value


def decoded(code: Expr, name: str) -> Expr:
    return getattr(ops, f"f32_from_{name}")(code)


def encoded(value: Expr, name: str, limit: float | None) -> Expr:
    if limit is not None:
        value = ops.maximum(ops.minimum(value, limit), -limit)
    return getattr(ops, f"{name}_from_f32")(value)
