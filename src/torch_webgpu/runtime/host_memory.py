"""The machine's memory, which is a software adapter's: how much there is, what is left, and who was promised it.

Linux's ``/proc/meminfo`` counts the whole machine; a container may have less, which its control group tells (version 2:
``memory.max``, version 1: ``memory.limit_in_bytes``). https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from .vulkan_memory import DeviceMemory

CHECK_BYTES = 64 << 20
"""New memory between two looks at the machine's, which take up to a millisecond; writing that much takes ten."""
SPARE_BYTES = 256 << 20
"""What is left to the rest of the program and the system."""


def machine_memory(root: Path = Path("/")) -> DeviceMemory | None:
    """What this process may still take of the machine's memory, and all of it; None where nobody tells."""
    return _windows_memory() if sys.platform == "win32" else _linux_memory(root)


def _linux_memory(root: Path) -> DeviceMemory | None:
    try:
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    free, total = kibibytes["MemAvailable"] << 10, kibibytes["MemTotal"] << 10
    for limit, used in _group_limits(root):
        free, total = min(free, max(0, limit - used)), min(total, limit)
    return DeviceMemory(free, total)


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limits and use in bytes of the control groups this process is in; file caches are not use."""
    try:
        entries = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if not controllers:
            top, files = "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):  # a container sees its own group as the topmost one
            found = _group_limit(root / top / folder, *files)
            if found is not None:
                yield found


def _group_limit(folder: Path, limit: str, usage: str, caches: str) -> tuple[int, int] | None:
    try:
        most, used = (folder / limit).read_text("ascii").strip(), int((folder / usage).read_text("ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return None
    return None if most == "max" else (int(most), used - int(statistics.get(caches, 0)))


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32), ("load", ctypes.c_uint32), ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 5),
    )  # fmt: skip


def _windows_memory() -> DeviceMemory | None:
    windows: Any = ctypes  # with what others have not
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not windows.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return DeviceMemory(status.available, status.total)


class Reserving(Protocol):
    """A pool of buffers."""

    @property
    def reserved_bytes(self) -> int: ...


class Budget:
    """What pools may take of the machine's memory in all.

    Software adapters commit memory when it is written: buffers of any size are made, and the system kills the process
    that fills them. So what the pools were given counts as taken, whether it was written or not.
    """

    def __init__(self, look: Callable[[], DeviceMemory | None] = machine_memory) -> None:
        self._look = look
        self._pools: WeakSet[Reserving] = WeakSet()
        self._most = 0  # bytes that were available to the pools
        self._unchecked = 0

    def join(self, pool: Reserving) -> None:
        """One more pool takes memory."""
        self._pools.add(pool)

    def refusal(self, size_bytes: int) -> str:
        """Why no buffer of this size should be made; empty if one may be."""
        self._unchecked += size_bytes
        if self._unchecked < CHECK_BYTES:
            return ""
        memory = self._look()
        if memory is None or memory.free is None:
            return ""
        reserved = sum(pool.reserved_bytes for pool in self._pools)
        self._most = max(self._most, memory.free)
        if size_bytes + SPARE_BYTES <= memory.free and reserved + size_bytes + SPARE_BYTES <= self._most:
            self._unchecked = 0
            return ""
        self._unchecked -= size_bytes
        return (
            f"this adapter computes in the machine's memory, of which {_gib(memory.free)} of {_gib(memory.total)} are "
            f"available; {_gib(reserved)} are reserved for tensors already, written or not, and {_gib(SPARE_BYTES)} "
            "are left to the rest of the system"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"


@cache
def machine_budget() -> Budget:
    """The budget that all software adapters share."""
    return Budget()
