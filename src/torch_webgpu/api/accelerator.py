"""``torch.accelerator`` for webgpu: what its C++ side cannot ask of a Python backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_webgpu.dtypes import BY_TORCH
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.store import FLOAT64_TYPES

from . import memory
from .device import set_device, synchronize
from .streams import Stream, set_stream


def _exchange(index: int) -> int:
    before = current_device()
    set_device(index)
    return before


def _dtypes(index: int) -> set[torch.dtype]:
    return set(BY_TORCH) if engine().device(index).target.float64 else set(BY_TORCH) - FLOAT64_TYPES


HOOKS: dict[str, Callable[..., Any]] = {
    "getDeviceIndex": current_device,
    "setDeviceIndex": set_device,
    "exchangeDevice": _exchange,
    "maybeExchangeDevice": _exchange,
    "synchronizeDevice": synchronize,
    "isAllocatorInitialized": lambda: True,
    "emptyCache": memory.empty_cache,
    "emptyHostCache": lambda: None,
    "getDeviceStats": memory.memory_stats_as_nested_dict,
    "resetAccumulatedStats": memory.reset_accumulated_memory_stats,
    "resetPeakStats": memory.reset_peak_memory_stats,
    "getDeviceCapability": lambda index: {"supported_dtypes": _dtypes(index)},
    "getMemoryInfo": memory.mem_get_info,
    "getStream": Stream,
    "setStream": set_stream,
}
