"""Submissions kept as they are encoded, and memory taken and given back for a whole submission."""

from __future__ import annotations

import gc
import struct
from itertools import pairwise

import pytest
from tests.device.runtime.test_runtime import add_scalar, device, in_new_process, read_f32  # noqa: F401  a fixture, and helpers

from torch_webgpu.errors import OutOfMemoryError, WebGPUError
from torch_webgpu.runtime.buffers import Buffer
from torch_webgpu.runtime.commands import ClearBuffer, CopyBuffer
from torch_webgpu.runtime.device import Device

N = 4


def test_prepared_commands_run_again_with_other_parameters(device: Device) -> None:  # noqa: F811
    x, y, z = (device.allocate(4 * N) for _ in range(3))
    commands = [
        ClearBuffer(x, 0, 4 * N),
        add_scalar(x, y, N, 1.0),
        add_scalar(y, z, N, 2.0),
        CopyBuffer(z, 0, x, 0, 4 * N),
        add_scalar(x, y, N, 4.0),
    ]
    prepared = device.prepare_again("five commands", commands)
    assert prepared is not None
    assert device.opened.prepared.get("five commands") is prepared
    for added in (1.0, 10.0):
        prepared.params[1][:] = struct.pack("If", N, added)
        device.submit_prepared(device.opened, prepared)
        assert set(read_f32(device, y, N)) == {added + 2 + 4}
    copied = device.allocate(4 * N)
    device.submit_prepared(device.opened, prepared, lambda: [CopyBuffer(y, 0, copied, 0, 4 * N)])
    assert set(read_f32(device, copied, N)) == {10.0 + 2 + 4}


def test_what_was_looked_up_is_outdated_when_memory_is_given_back(device: Device) -> None:  # noqa: F811
    x, y = device.allocate(1 << 20), device.allocate(1 << 20)
    device.prepare_again(("kept", x, y), [add_scalar(x, y, N, 1.0), CopyBuffer(x, 0, y, 0, 4)])
    assert device.opened.prepared.get(("kept", x, y)) is not None
    assert named(x)
    device.release(x)
    device.empty_cache()
    assert not named(x)


def named(buffer: Buffer) -> bool:
    """Whether anything that is kept names a buffer."""
    gc.collect()
    return any(type(holder) in (tuple, CopyBuffer) for holder in gc.get_referrers(buffer))


def test_commands_that_cannot_be_looked_up_ahead(device: Device) -> None:  # noqa: F811
    """More bind groups than are kept: those found first are gone when the last is found."""
    device.empty_cache()
    cache = device._opened.pipelines
    whole, cache.recent.limit = cache.recent.limit, 8
    try:
        buffers = [device.allocate(4 * N) for _ in range(20)]
        commands = [add_scalar(a, b, N, 1.0) for a, b in pairwise(buffers)]
        assert device.prepare_again("too many", commands) is None
        assert device.opened.prepared.get("too many") is None
        assert device.prepare_again("few", commands[:3]) is not None
    finally:
        cache.recent.limit = whole


def test_what_submit_refuses_is_refused(device: Device) -> None:  # noqa: F811
    x, y = device.allocate(4 * N), device.allocate(4 * N)
    submissions = device.submissions
    good = add_scalar(x, y, N, 1.0)
    for bad in (good._replace(params=b""), good._replace(grid=(1 << 20, 1, 1)), good._replace(buffers=(x,))):
        with pytest.raises(WebGPUError):
            device.prepare_again("bad", [good, bad])
    assert device.submissions == submissions
    assert device.opened.prepared.get("bad") is None


def test_parameters_in_a_uniform_buffer() -> None:
    script = """
        x, y = device.allocate(16), device.allocate(16)
        device.submit([ClearBuffer(x, 0, 16)])
        commands = [add_scalar(*pair, 4, 1.0) for pair in [(x, y), (y, x)] * 8]
        prepared = device.prepare_again("sixteen", commands)
        for added in (1.0, 3.0):
            for params in prepared.params:
                params[:] = struct.pack("If", 4, added)
            device.submit_prepared(device.opened, prepared)
        assert set(read_f32(device, x, 4)) == {16.0 + 48.0}
        assert device.prepare_again("too many", [commands[0]] * 20000) is None
        print(device.target.immediates_bytes)
    """
    done = in_new_process(script, TORCH_WEBGPU_IMMEDIATES="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]


def test_an_exchange_is_what_its_steps_are_one_by_one(device: Device) -> None:  # noqa: F811
    held = device.allocate(1000)
    before = device.stats
    capacity = device.capacity(1000)
    steps = [(0, capacity), (1, capacity), (0, 0), (2, capacity), (1, 0), (3, capacity)]
    buffers = device.opened.memory.exchange(steps, [held, None, None, None])
    assert buffers[0] is held  # it had one, which it gave back
    assert buffers[2] is not buffers[1]
    assert buffers[3] is not buffers[2]
    assert {buffers[2], buffers[3]} & {held, buffers[1]}  # memory given back is taken again
    after = device.stats
    assert after.buffers == before.buffers + 1
    assert after.allocated_bytes == before.allocated_bytes + capacity
    device.release_all([buffers[2], buffers[3]])
    assert device.stats.buffers == before.buffers - 1
    with pytest.raises(WebGPUError, match="released twice"):
        device.release(held)
    for twice in ([held], [buffers[2]]):
        with pytest.raises(WebGPUError, match="released twice"):
            device.release_all(twice)
    assert device.stats.buffers == before.buffers - 1


def test_an_exchange_that_fails_has_not_happened(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    held = device.allocate(5000)
    device.empty_cache()
    pool = device._opened.pool
    capacity, before, free = device.capacity(5000), device.stats, device.free_sizes
    create, made = pool._create, []

    def create_one(*args: int) -> object:
        if made:
            raise OutOfMemoryError("no more")
        made.append(create(*args))
        return made[-1]

    monkeypatch.setattr(pool, "_create", create_one)
    steps = [(1, capacity), (0, 0), (2, capacity), (3, capacity)]
    with pytest.raises(OutOfMemoryError, match="no more"):
        device.opened.memory.exchange(steps, [held, None, None, None])
    monkeypatch.undo()
    after = device.stats
    assert (after.buffers, after.allocated_bytes) == (before.buffers, before.allocated_bytes)
    assert sorted(device.free_sizes) == sorted([*free, capacity])  # the one that was made
    device.release(held)
