"""Memory on the double, which counts what its buffers take: pools, exchanges, and no memory left."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.unit.runtime import programs
from tests.unit.runtime.programs import add, double, filled, native, words
from tests.webgpu_double import CheckedWebGPU, Faults

from torch_webgpu.errors import OutOfMemoryError, WebGPUError
from torch_webgpu.runtime.buffers import Buffer
from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.encoder import UNIFORM_BYTES

N = 64
MIB = 1 << 20


def test_the_adapter_has_given_what_is_reserved(device: Device) -> None:
    buffers = [device.allocate(1000 * k) for k in range(1, 9)]
    for x, y in pairwise(buffers):
        device.submit([add(x, y, N, 1)])
    device.release_all(buffers[::2])
    for _ in range(2):
        assert native(device).memory_bytes == device.stats.reserved_bytes + UNIFORM_BYTES
        device.empty_cache()
    assert device.stats.pooled_bytes == 0
    device.release_all(buffers[1::2])
    device.empty_cache()
    assert device.stats.buffers == 1  # the error flags


def test_released_memory_serves_again(device: Device) -> None:
    first = device.allocate(5000)
    device.release(first)
    assert device.allocate(4999) is first
    with pytest.raises(WebGPUError, match="released twice"):
        device.release_all([first, first])
    assert device.capacity(5000) == first.size_bytes


def test_sizes_that_keep_changing_are_given_back(device: Device) -> None:
    for k in range(40):
        device.release(device.allocate((10 + k) * MIB))
    assert native(device).memory_bytes <= 49 * MIB * 1.25 + 64 * MIB + UNIFORM_BYTES + MIB


def test_a_buffer_over_the_limit(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu, limits={"max-buffer-size": MIB + 1})
    assert device.allocate(MIB - 3).size_bytes == MIB
    with pytest.raises(OutOfMemoryError, match="exceeds this adapter's limit"):
        device.allocate(MIB + 1)
    device.close()


def test_pooled_memory_is_given_back_before_there_is_none(device: Device, faults: Faults) -> None:
    x, y = filled(device, [3] * N), device.allocate(MIB)
    device.submit([add(x, y, N, 1)])
    faults.memory_bytes = native(device).memory_bytes + MIB
    device.release(y)
    device.allocate(2 * MIB)
    with pytest.raises(OutOfMemoryError, match="tried to allocate"):
        device.allocate(MIB)
    stats = device.stats
    assert (stats.failed_allocations, stats.out_of_memory) == (1, 1)
    faults.memory_bytes = None
    assert words(device, x, N) == [3] * N
    device.reset_accumulated_stats()
    assert device.stats.out_of_memory == 0


def test_a_download_without_room_gives_pooled_memory_back(device: Device, faults: Faults) -> None:
    x, y = filled(device, range(N)), device.allocate(MIB)
    device.release(y)
    faults.memory_bytes = native(device).memory_bytes
    assert words(device, x, N) == list(range(N))
    device.empty_cache()
    faults.memory_bytes = native(device).memory_bytes
    with pytest.raises(OutOfMemoryError, match="A download takes"):
        words(device, x, N)
    faults.memory_bytes = None
    assert words(device, x, N) == list(range(N))


def test_readbacks_without_room_leave_nothing_behind(device: Device, faults: Faults, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch_webgpu.runtime.transfer._CHUNK_BYTES", 1 << 16)
    size = 3 << 16
    x = device.allocate(size)
    target = np.empty(size, np.uint8)
    held = native(device).memory_bytes
    faults.memory_bytes = held + (2 << 16)
    with pytest.raises(OutOfMemoryError, match="A download takes"):
        device.begin_readbacks((x, 0, size), target)
    assert native(device).memory_bytes == held + (2 << 16)  # for the next one
    device.empty_cache()
    assert native(device).memory_bytes == held


def test_a_device_without_room_for_itself_does_not_open(webgpu: CheckedWebGPU) -> None:
    webgpu.faults.memory_bytes = UNIFORM_BYTES
    device = programs.device(webgpu)
    with pytest.raises(OutOfMemoryError):
        device.allocate(4)
    assert not device.is_open
    assert [native.closed for native in webgpu.devices] == [True]
    webgpu.faults.memory_bytes = None
    device.allocate(4)
    device.close()


def test_an_exchange_that_fails_has_not_happened(device: Device, faults: Faults) -> None:
    held = filled(device, [1] * 256)
    capacity, before = held.size_bytes, device.stats
    faults.memory_bytes = native(device).memory_bytes + capacity
    steps = [(1, capacity), (0, 0), (2, capacity), (3, capacity)]
    buffers: list[Buffer | None] = [held, None, None, None]
    with pytest.raises(OutOfMemoryError):
        device.opened.memory.exchange(steps, buffers)
    assert device.stats.buffers == before.buffers
    faults.memory_bytes = None
    taken = device.opened.memory.exchange(steps, buffers)
    device.undo_exchange(steps, buffers, taken)
    assert device.stats.buffers == before.buffers
    assert words(device, held, 1) == [1]


def test_private_memory_is_nobody_elses(device: Device) -> None:
    pool = device.private_pool()
    pool.retain()
    device.allocate_from(pool)
    first = device.allocate(4 * N)
    device.release(first)
    device.allocate_from(None)
    assert device.allocate(4 * N) is not first
    device.allocate_from(pool)
    steps = [(0, first.size_bytes), (0, 0), (1, first.size_bytes)]
    buffers = device.opened.memory.exchange(steps, [None, None])
    assert buffers == [first, first]
    device.allocate_from(None)
    device.release(first)
    pool.drop()
    assert device.allocate(4 * N) is first
    assert device.has_pool(pool)
    device.reopen()
    assert not device.has_pool(pool)


def test_pinned_memory_stays_beyond_its_release(device: Device) -> None:
    x = filled(device, [1] * N)
    device.pin(x)
    device.release(x)
    assert device.allocate(4 * N) is not x
    graph = device.encode_graph([double(x, N)])
    device.replay(graph)
    graph.release()
    device.unpin(x)
    assert device.allocate(4 * N) is x


def test_counters(device: Device) -> None:
    x = device.allocate(1024)
    device.submit([double(x, N)])
    stats, tallies = device.stats, device.memory_tallies()
    assert (stats.pipelines, stats.bind_groups, stats.submissions) == (1, 1, 2)
    assert tallies["active"].current == stats.buffers == 2
    assert tallies["reserved_bytes"].current == stats.reserved_bytes
    device.release(x)
    assert device.free_sizes == [1024]
    device.reset_peak_stats()
    assert device.stats.peak_allocated_bytes == device.stats.allocated_bytes
    assert "in use" in device.memory_summary()
