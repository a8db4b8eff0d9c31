"""Memory in use, in torch.cuda's spelling and with the keys of the WebGPU controls (``active_bytes``, …).

*Allocated* is what PyTorch's tensors hold; *reserved* what the adapter gave us; *pooled* the part of it kept for reuse.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from typing import Any

from torch_webgpu.engine.flush_reason import MEMORY
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.runtime import devices
from torch_webgpu.runtime.tally import Tally

from .adapter_memory import adapter_memory
from .device import DeviceLike, index_of
from .records import Record


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes held by live tensors."""
    return engine().tensor_bytes(index_of(device)).current


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes live tensors held since the start, or since :func:`reset_peak_memory_stats`."""
    return engine().tensor_bytes(index_of(device)).peak


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the adapter: buffers in use and pooled ones."""
    eng, index = engine(), index_of(device)
    eng.reclaim()
    return eng.device(index).stats.reserved_bytes


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes taken from the adapter at one time."""
    return engine().device(index_of(device)).memory_tallies()["reserved_bytes"].peak


def memory_cached(device: DeviceLike = None) -> int:
    """The former name of :func:`memory_reserved`."""
    warnings.warn(RENAMED.format("memory_cached", "memory_reserved"), FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """The former name of :func:`max_memory_reserved`."""
    warnings.warn(RENAMED.format("max_memory_cached", "max_memory_reserved"), FutureWarning, stacklevel=2)
    return max_memory_reserved(device)


RENAMED = "`torch.webgpu.{}` has been renamed to `torch.webgpu.{}`"
_NOTHING = Tally()
# What torch.cuda counts, and an allocator that splits no buffers has none of.
_UNKNOWN_HERE = ("inactive_split", "inactive_split_bytes")
_OVERSIZE = ("oversize_allocations", "oversize_segments")
_NUMBERS_UNKNOWN_HERE = ("num_sync_all_streams", "num_oom_rejections", "max_split_size")


def memory_stats(device: DeviceLike = None) -> Record:
    """Counters under torch.cuda's keys (``allocated_bytes.all.current``, …) and the plain ones of WebGPU programs.

    ``allocated_bytes`` and ``requested_bytes`` are what tensors hold, ``active`` and ``allocation`` buffers in use
    (kernels' temporaries included), ``segment`` and ``reserved_bytes`` what the adapter gave us. There is one pool,
    which counts as torch.cuda's large one. Buffers are never split: ``inactive_split`` and ``oversize`` are 0.
    The plain entries are attributes, too: ``memory_stats().active_bytes``.
    """
    eng, index = engine(), index_of(device)
    with Uninterrupted(), eng.lock:
        tensors = eng.tensor_bytes(index)
        found = eng.device(index)
        stats, tallies = found.stats, found.memory_tallies()
    plain = {
        "active_bytes": tensors.current,
        "pooled_bytes": stats.pooled_bytes,
        "peak_bytes": tensors.peak,
        "reserved_bytes": stats.reserved_bytes,
        "buffers": stats.buffers,
        "pooled_buffers": stats.pooled_buffers,
        "pipelines": stats.pipelines,
        "submissions": stats.submissions,
        "num_alloc_retries": stats.failed_allocations,
        "num_ooms": stats.out_of_memory,
        "num_device_alloc": tallies["segment"].allocated,
        "num_device_free": tallies["segment"].freed,
        **dict.fromkeys(_NUMBERS_UNKNOWN_HERE, 0),
    }
    tallies |= {"allocation": tallies["active"], "allocated_bytes": tensors, "requested_bytes": tensors}
    tallies |= dict.fromkeys(_UNKNOWN_HERE, _NOTHING)
    keyed = {
        f"{name}.{pool}.{key}": value
        for name, tally in tallies.items()
        for pool, counted in (("all", tally), ("large_pool", tally), ("small_pool", _NOTHING))
        for key, value in asdict(counted).items()
    }
    keyed |= {f"{name}.{key}": 0 for name in _OVERSIZE for key in asdict(_NOTHING)}
    return Record(sorted({**plain, **keyed}.items()))


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
    """(free, total) bytes of an adapter: the machine's memory for one that computes on the CPU, else the GPU's own.

    WebGPU does not tell; Vulkan does, of GPUs under D3D12 as well, by an extension that nearly every driver has. Of
    Metal's the total is what it recommends to use, and free what this process has not taken of it. Raises RuntimeError
    where nobody tells.
    """
    memory = adapter_memory(index_of(device))
    if memory is None or memory.free is None:
        raise RuntimeError(
            "WebGPU does not tell how much memory an adapter has, and neither does this one's driver; "
            "torch.webgpu.memory_stats() tells what is used, and "
            "torch.webgpu.get_device_properties().max_buffer_size how large one tensor can be"
        )
    return memory.free, memory.total


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits what this process takes of an adapter's memory: ``fraction``, from 0 to 1, of its total.

    The total is that of :func:`mem_get_info`, which raises RuntimeError where nobody tells it. An operation that would
    need more raises torch.OutOfMemoryError when it is submitted, after pooled memory was given back. What is in use
    already stays.
    """
    index = index_of(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    eng = engine()
    total_bytes = mem_get_info(index)[1]
    with Uninterrupted(), eng.lock:
        eng.device(index).limit_memory(fraction, total_bytes)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """What :func:`set_per_process_memory_fraction` set; 1 where nothing was."""
    return engine().device(index_of(device)).memory_fraction


def list_gpu_processes(device: DeviceLike = None) -> str:
    """The processes that use an adapter and their memory, for people. WebGPU tells of no process but this one."""
    index = index_of(device)
    lines, used = [f"GPU:{index}"], memory_reserved(index)
    if used:
        lines.append(f"process {os.getpid():>10d} uses {used / 2**20:>12.3f} MB GPU memory")
    else:
        lines.append("this process uses no GPU memory")
    return "\n".join([*lines, "WebGPU does not tell of other processes"])


def memory_snapshot(device: DeviceLike = None) -> list[dict[str, Any]]:
    """The memory of all adapters, or of one, as torch.cuda describes its own: segments, each with its blocks.

    A segment is a buffer and has one block, whose ``state`` is "active_allocated" for a tensor's and "inactive" for one
    that is kept for reuse. What captured graphs keep to themselves belongs to no tensor and is not in it. An address is
    ``Tensor.untyped_storage().data_ptr()``, virtual; 0 where there is no tensor. Submits what is recorded.
    """
    eng = engine()
    wanted = range(len(eng.devices)) if device is None else [index_of(device)]
    with Uninterrupted(), eng.lock:
        eng.flush(MEMORY)
        segments = [
            _segment(a.device, a.address, a.buffer.size_bytes, a.size_bytes, "active_allocated")
            for a in eng.materialised()
            if a.device in wanted
        ]
        for index in wanted:
            segments += [_segment(index, 0, size, 0, "inactive") for size in eng.devices[index].free_sizes]
    return segments


def _segment(device: int, address: int, size_bytes: int, requested_bytes: int, state: str) -> dict[str, Any]:
    in_use_bytes = 0 if state == "inactive" else size_bytes
    placed = {"address": address, "requested_size": requested_bytes, "frames": []}
    block = {**placed, "size": size_bytes, "state": state}
    return {
        **placed,
        "device": device,
        "total_size": size_bytes,
        "allocated_size": in_use_bytes,
        "active_size": in_use_bytes,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [block],
    }


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
    with Uninterrupted(), eng.lock:
        eng.flush(MEMORY)
        for found in devices():
            found.empty_cache()


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peak counters again from what is in use now."""
    engine().reset_peak(index_of(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Forgets what was allocated and freed so far (the keys that end so), and the failures."""
    engine().reset_accumulated(index_of(device))
