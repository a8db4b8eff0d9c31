"""The machine's memory, read from files like Linux's, and what pools may take of it: nothing large is allocated."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torch_webgpu.errors import OutOfMemoryError
from torch_webgpu.runtime.buffers import BufferPool
from torch_webgpu.runtime.host_memory import CHECK_BYTES, SPARE_BYTES, Budget, machine_memory
from torch_webgpu.runtime.vulkan_memory import DeviceMemory

GIB = 1 << 30
MEMINFO = f"MemTotal: {32 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {20 * GIB >> 10} kB\nHugePages_Total: 0\n"
linux = pytest.mark.skipif(sys.platform == "win32", reason="Windows is asked otherwise")


def machine(root: Path, files: dict[str, str]) -> DeviceMemory | None:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return machine_memory(root)


def group(folder: str, limit: str, used: int) -> dict[str, str]:
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": str(used),
        f"{folder}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }


@linux
def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert machine(tmp_path, {}) == DeviceMemory(20 * GIB, 32 * GIB)
    assert machine_memory(tmp_path / "elsewhere") is None


@linux
def test_a_control_group_has_less_than_the_machine(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/pod/task\n"}
    files |= group("sys/fs/cgroup/pod", str(8 * GIB), 6 * GIB) | group("sys/fs/cgroup/pod/task", "max", 3 * GIB)
    assert machine(tmp_path, files) == DeviceMemory(3 * GIB, 8 * GIB), "its caches can be dropped"


@linux
def test_a_container_sees_its_own_group_as_the_topmost(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../some/where\n", **group("sys/fs/cgroup", str(4 * GIB), 5 * GIB)}
    assert machine(tmp_path, files) == DeviceMemory(0, 4 * GIB)


@linux
def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/job"
    files = {
        "proc/self/cgroup": "9:cpu,cpuacct:/\n4:memory:/job\n0::/\n",
        f"{folder}/memory.limit_in_bytes": str(2 * GIB),
        f"{folder}/memory.usage_in_bytes": str(GIB),
        f"{folder}/memory.stat": f"cache 7\ntotal_inactive_file {GIB >> 1}\n",
    }
    assert machine(tmp_path, files) == DeviceMemory(GIB + (GIB >> 1), 2 * GIB)


@linux
def test_this_machine_tells() -> None:
    memory = machine_memory()
    assert memory is not None
    assert memory.free is not None
    assert 0 < memory.free <= memory.total


class Native:
    """Makes buffers of any size of nothing, as a driver that commits memory when it is written."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.sink = SimpleNamespace(take=list)

    def create_buffer(self, size_bytes: int, usage: int) -> object:
        self.made.append(size_bytes)
        return object()

    def release_buffer(self, handle: object) -> None:
        pass


def pool(budget: Budget) -> Any:
    return BufferPool(Native(), 0, 1 << 40, lambda buffer: None, budget)  # type: ignore[arg-type]


def test_buffers_that_were_never_written_count() -> None:
    first, second = (pool(budget) for budget in [Budget(lambda: DeviceMemory(5 * GIB, 8 * GIB))] * 2)
    kept = [first.allocate(GIB), first.allocate(GIB), second.allocate(GIB), second.allocate(GIB)]
    with pytest.raises(
        OutOfMemoryError,
        match=r"tried to allocate 1.00 GiB, but (.|\n)*5.00 GiB of 8.00 GiB are available; 4.00 GiB(.|\n)*in use",
    ):
        second.allocate(GIB)
    assert len(second._native.made) == 2
    second.allocate(4096)
    first.release(kept[0])
    first.empty()
    second.allocate(GIB)


def test_other_programs_take_memory_too() -> None:
    left = [8 * GIB]
    one = pool(Budget(lambda: DeviceMemory(left[0], 8 * GIB)))
    one.allocate(GIB)
    left[0] = GIB
    with pytest.raises(OutOfMemoryError):
        one.allocate(GIB)
    left[0] = 7 * GIB
    one.allocate(GIB)


def test_little_memory_is_not_worth_a_look() -> None:
    looks = []

    def look() -> DeviceMemory | None:
        looks.append(1)
        return DeviceMemory(SPARE_BYTES + 2 * CHECK_BYTES, 8 * GIB)

    one = pool(Budget(look))
    for _ in range(15):
        one.allocate(CHECK_BYTES // 16)
    assert not looks
    one.allocate(CHECK_BYTES // 16)
    assert len(looks) == 1
    with pytest.raises(OutOfMemoryError):
        one.allocate(2 * CHECK_BYTES)


def test_nobody_tells() -> None:
    pool(Budget(lambda: None)).allocate(1 << 39)
