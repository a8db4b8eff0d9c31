"""What to do with a program that the device has no room for, with the figures of both places."""

from __future__ import annotations

import os
from typing import Any

import torch

GIB = 1 << 30


def host_bytes() -> tuple[int, int] | None:
    """Free and total memory of the host; None where the system does not tell."""
    posix: Any = os  # Windows' has no sysconf
    try:
        page, free, total = map(posix.sysconf, ("SC_PAGE_SIZE", "SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
        return page * free, page * total
    except (ValueError, OSError, AttributeError):
        return None


def device_bytes(target: str) -> tuple[int, int] | None:
    """Most memory that tensors had, and the device's total; None where it does not tell."""
    module = getattr(torch, target)
    try:
        return int(module.max_memory_allocated()), int(module.mem_get_info()[1])
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


def hint(target: str) -> str:
    """What to try after :class:`torch.OutOfMemoryError`."""
    lines = []
    if (device := device_bytes(target)) is not None:
        peak, total = device
        lines.append(f"Its tensors had at most {peak / GIB:.2f} GiB of the {total / GIB:.2f} GiB that {target} has.")
    if target != "cpu" and (host := host_bytes()) is not None:
        free, total = host
        lines.append(
            f"The host has {free / GIB:.1f} GiB free of {total / GIB:.1f} GiB: `torch-webgpu run --device cpu` runs "
            "the program there."
        )
    lines.append(
        "Smaller batches need less, as do torch.float16 (half), torch.utils.checkpoint for training, and for models of "
        'transformers and diffusers device_map="auto", which leaves on the host what does not fit.'
    )
    return "\n".join(lines)
