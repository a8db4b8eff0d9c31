"""How much memory a GPU of Apple's has: the part of the machine's that Metal recommends to use."""

from __future__ import annotations

import os
from contextlib import suppress

import torch

from .vulkan_memory import DeviceMemory


def metal_memory(reserved_bytes: int) -> DeviceMemory | None:
    """``recommendedMaxWorkingSetSize`` where PyTorch has MPS, else the machine's memory; None without both.

    What other programs use of it nobody tells: ``free`` is what this process, which has reserved so many bytes, leaves.
    """
    total = 0
    if torch.backends.mps.is_available():
        with suppress(RuntimeError):
            total = int(torch.mps.recommended_max_memory())
    if not total and hasattr(os, "sysconf"):
        with suppress(ValueError, OSError):
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceMemory(max(0, total - reserved_bytes), total) if total else None
