"""Memory figures where the target keeps no counters of its own. None is made up.

On the CPU they are the process's resident memory, tensors or not, as the operating system counts it. ``torch.mps``
tells what is in use now: its peak is the highest of the figures that were asked for.
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from torch_webgpu.runtime.host_memory import machine_memory

from .target import HERE, DeviceLike

_TOLD_NOWHERE = "{} is not told by this operating system; psutil.Process().memory_info() is one that knows it"


def _resident_bytes() -> int:
    try:
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(b"VmRSS"))
    except OSError:
        raise NotImplementedError(_TOLD_NOWHERE.format("The resident memory")) from None


def _peak_resident_bytes() -> int:
    try:
        resource = import_module("resource")
    except ImportError:
        raise NotImplementedError(_TOLD_NOWHERE.format("The peak of the resident memory")) from None
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else peak << 10


class _Peaks:
    """The highest figures that ``torch.mps`` gave since the last reset."""

    def __init__(self) -> None:
        self.allocated = self.reserved = 0


_peaks = _Peaks()


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes in use."""
    HERE.index(device)
    if HERE.type == "cpu":
        return _resident_bytes()
    now = torch.mps.current_allocated_memory()
    _peaks.allocated = max(_peaks.allocated, now)
    return now


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the system."""
    HERE.index(device)
    if HERE.type == "cpu":
        return _resident_bytes()
    now = torch.mps.driver_allocated_memory()
    _peaks.reserved = max(_peaks.reserved, now)
    return now


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes in use: of the process since its start, of ``torch.mps`` at the moments it was asked."""
    now = memory_allocated(device)
    return max(now, _peak_resident_bytes()) if HERE.type == "cpu" else _peaks.allocated


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes taken from the system, likewise."""
    now = memory_reserved(device)
    return max(now, _peak_resident_bytes()) if HERE.type == "cpu" else _peaks.reserved


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peaks of ``torch.mps`` again. The process's own cannot be reset."""
    HERE.index(device)
    _peaks.allocated = _peaks.reserved = 0


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes: of the machine, of what Metal recommends to use, or what the target tells."""
    HERE.index(device)
    if HERE.type == "mps":
        total = torch.mps.recommended_max_memory()
        return max(0, total - torch.mps.driver_allocated_memory()), total
    if HERE.type == "cpu":
        memory = machine_memory()
        if memory is None or memory.free is None:
            raise NotImplementedError(_TOLD_NOWHERE.format("The free memory"))
        return memory.free, memory.total
    free, total = HERE.module.mem_get_info(device)
    return int(free), int(total)


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes in use by all programs: what is not free."""
    free, total = mem_get_info(device)
    return total - free


def recommended_max_memory() -> int:
    """Bytes that may be used before programs slow down: all there are, where nobody says less."""
    return mem_get_info()[1]


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """The figures that there are, under torch.cuda's keys."""
    return {
        "allocated_bytes.all.current": memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
    }


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """:func:`memory_stats` as nested dictionaries, one level per part of a key."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """:func:`memory_stats`, for people."""
    stats = memory_stats(device)
    return "\n".join([str(HERE.device(device)), *(f"  {key:<28}{n / 2**20:12.2f} MiB" for key, n in stats.items())])


def snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The memory now, as ``torch.cuda.memory._snapshot`` gives it: segments and blocks, and a history of nothing."""
    return {"segments": HERE.module.memory_snapshot(), "device_traces": [[] for _ in range(HERE.count)]}


def dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes :func:`snapshot` to a file, which https://pytorch.org/memory_viz shows."""
    Path(filename).write_bytes(pickle.dumps(snapshot()))


def nothing_counted(device: DeviceLike = None) -> dict[str, Any]:
    """No counters."""
    return {}
