"""Tensors and indices for the tests of this folder, and their comparison with the CPU."""

from __future__ import annotations

import torch
from tests.device import against_cpu
from tests.device.against_cpu import HALF_TYPES

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small numbers whose sums and products are exact in every type."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(0 if dtype == torch.uint8 else -3, 4, shape).to(dtype)


def check(device, fn, *tensors: torch.Tensor, backward: bool = False) -> None:
    """Gradients in the half types are sums, which the CPU rounds at every step and the device at the end."""
    tol = 2e-2 if any(t.dtype in HALF_TYPES for t in tensors) else None
    against_cpu.check(device, fn, *tensors, backward=backward, tol=tol)


def indices(size: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, size, shape).to(dtype)
