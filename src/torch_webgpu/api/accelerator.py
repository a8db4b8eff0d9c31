"""``torch.accelerator`` for webgpu: what its C++ side cannot ask of a Python backend."""

from __future__ import annotations

from typing import Any

from ..aten.torch_abi import replace_accelerator_hooks
from ..dtypes import BY_TORCH
from ..engine.current import current_device, set_current_device
from . import memory
from .device import device_count, synchronize


def _exchange(index: int) -> int:
    before = current_device()
    if index >= 0:
        set_current_device(index)
    return before


def _set(index: int) -> None:
    if not 0 <= index < device_count():
        raise RuntimeError(f"webgpu:{index} does not exist: this machine has {device_count()} WebGPU adapter(s)")
    set_current_device(index)


def _nested_stats(index: int) -> dict[str, Any]:
    """``memory_stats`` as the nested dictionary that ``torch.accelerator.memory_stats`` flattens again."""
    nested: dict[str, Any] = {}
    stats = memory.memory_stats(index)
    for key in sorted(stats, key=lambda key: -key.count(".")):
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        # "active_bytes" is a number of ours and a group of torch.cuda's: the group wins.
        place.setdefault(last, stats[key])
    return nested


def _memory_info(index: int) -> tuple[int, int]:
    raise RuntimeError("WebGPU does not tell how much memory an adapter has; torch.webgpu.memory_stats() tells what is used")


def register() -> None:
    """Puts them in place. They serve only while webgpu is the current accelerator."""
    replace_accelerator_hooks(
        {
            "getDeviceIndex": current_device,
            "setDeviceIndex": _set,
            "exchangeDevice": _exchange,
            "maybeExchangeDevice": _exchange,
            "synchronizeDevice": synchronize,
            "isAllocatorInitialized": lambda: True,
            "emptyCache": memory.empty_cache,
            "emptyHostCache": lambda: None,
            "getDeviceStats": _nested_stats,
            "resetAccumulatedStats": memory.reset_accumulated_memory_stats,
            "resetPeakStats": memory.reset_peak_memory_stats,
            "getDeviceCapability": lambda index: {"supported_dtypes": set(BY_TORCH)},
            "getMemoryInfo": _memory_info,
        }
    )
