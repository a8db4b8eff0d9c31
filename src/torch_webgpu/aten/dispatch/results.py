"""Results on their way into tensors that are given: what may be cast, what is resized, and how PyTorch says so."""

from __future__ import annotations

from typing import Literal

import torch
from torch._prims_common.wrappers import _maybe_resize_out

Maybe = torch.Tensor | None
Strided = Literal["never", "empty", "resized"]
"""Which ``out=`` tensors get the strides of results: none; those that were empty; all that are resized, as structured
kernels do that tell strides.
"""


def check_cast(source: torch.dtype, target: torch.dtype) -> None:
    if not torch.can_cast(source, target):
        raise RuntimeError(f"result type {name_of(source)} can't be cast to the desired output type {name_of(target)}")


def name_of(dtype: torch.dtype) -> str:
    """A dtype as PyTorch's C++ messages spell it: ``Float``, ``Long``, ``BFloat16``."""
    return torch.empty((), dtype=dtype, device="meta").type().split(".")[-1].removesuffix("Tensor")


def not_implemented(function: str, dtype: torch.dtype) -> NotImplementedError:
    """PyTorch's error for a function of a dtype that it has no kernel for."""
    return NotImplementedError(f"\"{function}\" not implemented for '{name_of(dtype)}'")


def write(value: torch.Tensor, out: torch.Tensor, strided: Strided = "never") -> torch.Tensor:
    """Copies a result into an ``out=`` tensor, resizing it as PyTorch does, with its warning."""
    check_cast(value.dtype, out.dtype)
    keeps = out.shape != value.shape and (strided == "resized" or (strided == "empty" and not out.numel()))
    _maybe_resize_out(out, value.shape)
    if keeps:
        out.as_strided_(value.shape, value.stride())
    return out.copy_(value)
