"""Memory in use, in torch.cuda's spelling and with the keys of the WebGPU controls (``active_bytes``, …).

*Allocated* is what PyTorch's tensors hold; *reserved* what the adapter gave us; *pooled* the part of it kept for reuse.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.runtime import devices

from .device import DeviceLike, index_of


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes held by live tensors."""
    eng, index = engine(), index_of(device)
    eng.reclaim()
    return eng.live_bytes.get(index, 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes live tensors held since the start, or since :func:`reset_peak_memory_stats`."""
    return max(engine().peak_bytes.get(index_of(device), 0), memory_allocated(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the adapter: buffers in use and pooled ones."""
    eng, index = engine(), index_of(device)
    eng.reclaim()
    return eng.device(index).stats.reserved_bytes


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes in use by buffers at one time, including kernels' temporaries."""
    return max(engine().device(index_of(device)).stats.peak_allocated_bytes, memory_reserved(device))


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Counters under torch.cuda's keys (``allocated_bytes.all.current``, …) and the plain ones of WebGPU programs."""
    eng, index = engine(), index_of(device)
    eng.reclaim()
    stats = eng.device(index).stats
    allocated = eng.live_bytes.get(index, 0)
    plain = {
        "active_bytes": allocated,
        "pooled_bytes": stats.pooled_bytes,
        "peak_bytes": max_memory_allocated(device),
        "reserved_bytes": stats.reserved_bytes,
        "buffers": stats.buffers,
        "pooled_buffers": stats.pooled_buffers,
        "pipelines": stats.pipelines,
        "submissions": stats.submissions,
    }
    keyed = {
        "allocated_bytes.all.current": allocated,
        "allocated_bytes.all.peak": plain["peak_bytes"],
        "active_bytes.all.current": stats.allocated_bytes,
        "active_bytes.all.peak": stats.peak_allocated_bytes,
        "reserved_bytes.all.current": stats.reserved_bytes,
        "reserved_bytes.all.peak": max_memory_reserved(device),
        "inactive_split_bytes.all.current": 0,
        "num_alloc_retries": 0,
        "num_ooms": 0,
    }
    return OrderedDict(sorted({**plain, **keyed}.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """:func:`memory_stats` as nested dictionaries, one level per part of a key."""
    nested: dict[str, Any] = {}
    stats = memory_stats(device)
    for key in sorted(stats, key=lambda key: -key.count(".")):
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        # "active_bytes" is a number of ours and a group of torch.cuda's: the group wins.
        place.setdefault(last, stats[key])
    return nested


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Raises RuntimeError: WebGPU does not tell how much memory an adapter has, let alone how much of it is free."""
    index_of(device)
    raise RuntimeError(
        "WebGPU does not tell how much memory an adapter has; torch.webgpu.memory_stats() tells what is used, and "
        "torch.webgpu.get_device_properties().max_buffer_size how large one tensor can be"
    )


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The counters of :func:`memory_stats`, for people."""
    stats = memory_stats(device)
    lines = [f"webgpu:{index_of(device)} {engine().device(index_of(device)).name}"]
    sizes = ("active_bytes", "peak_bytes", "pooled_bytes", "reserved_bytes")
    lines += [f"  {name:<16}{stats[name] / 2**20:12.2f} MiB" for name in sizes]
    if not abbreviated:
        counts = ("buffers", "pooled_buffers", "pipelines", "submissions")
        lines += [f"  {name:<16}{stats[name]:12d}" for name in counts]
    return "\n".join(lines)


def empty_cache() -> None:
    """Gives pooled memory back to the adapters."""
    eng = engine()
    with eng.lock:
        eng.flush()
        for found in devices():
            found.empty_cache()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peak counters again from what is in use now."""
    eng, index = engine(), index_of(device)
    eng.reclaim()
    eng.peak_bytes[index] = eng.live_bytes.get(index, 0)
    eng.device(index).reset_peak_stats()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Nothing accumulates; here because torch.cuda has it."""
    index_of(device)
