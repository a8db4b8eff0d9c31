"""Devices that are lost, closed, opened anew and forked, on the double."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.runtime import programs
from tests.unit.runtime.programs import add, double, filled, native, words
from tests.webgpu_double import CheckedWebGPU, Faults

from torch_webgpu.errors import DeviceLostError, ForkError
from torch_webgpu.runtime.commands import ClearBuffer
from torch_webgpu.runtime.device import FORKED, Device

N = 64
USES: dict[str, Callable[[Device], object]] = {
    "allocate": lambda device: device.allocate(1 << 20),
    "submit": lambda device: device.submit([]),
    "compile": lambda device: device.compile(programs.ADD),
    "synchronize": lambda device: device.synchronize(),
    "mark": lambda device: device.mark(),
    "stamp": lambda device: device.stamp(),
    "error_buffer": lambda device: device.error_buffer,
    "opened": lambda device: device.opened,
    "encode_graph": lambda device: device.encode_graph([]),
    "private_pool": lambda device: device.private_pool(),
    "capacity": lambda device: device.capacity(4),
}


@pytest.mark.parametrize("told", ["callback", "error"])
@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_lost_device_says_so(device: Device, faults: Faults, told: str, use: str) -> None:
    x, y = filled(device, [1] * N), device.allocate(4 * N)
    faults.lose_at, faults.loss_told = native(device)._runs + 1, told  # type: ignore[assignment]
    with pytest.raises(DeviceLostError, match="lost"):
        device.submit([add(x, y, N, 1)])
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="lost"):
            USES[use](device)
    device.release(x)
    device.release_all([y])
    device.empty_cache()
    device.finish()
    faults.lose_at = None
    device.reopen()
    assert words(device, filled(device, [4] * N), N) == [4] * N


@pytest.mark.parametrize("told", ["callback", "error"])
@pytest.mark.parametrize("late", range(8))
def test_a_loss_at_any_submission_of_a_program(webgpu: CheckedWebGPU, told: str, late: int) -> None:
    device = programs.device(webgpu)
    device.allocate(4)
    webgpu.faults.lose_at, webgpu.faults.loss_told = native(device)._runs + 1 + late, told  # type: ignore[assignment]
    with pytest.raises(DeviceLostError, match="lost"):
        _program(device)
    webgpu.faults.lose_at = None
    device.reopen()
    assert _program(device) == [8] * N
    device.close()


def _program(device: Device) -> list[int]:
    x, y = filled(device, [1] * N), device.allocate(4 * N)
    prepared = device.prepare_again("key", [add(x, y, N, 1)])
    assert prepared is not None
    device.submit_prepared(device.opened, prepared)
    graph = device.encode_graph([double(y, N)])
    device.replay(graph)
    target = np.empty(4 * N, np.uint8)
    (readback,) = device.begin_readbacks((y, 0, 4 * N), target)
    device.submit([*readback.copies, double(y, N)])
    device.read_stamps([device.stamp()])
    device.finish_readback(readback)
    assert target.view(np.uint32).tolist() == [4] * N
    found = words(device, y, N)
    device.synchronize()
    graph.release()
    return found


def test_a_loss_that_nobody_asked_about_shows_at_the_next_use(device: Device) -> None:
    device.allocate(4)
    native(device).destroy()
    with pytest.raises(DeviceLostError, match="it was destroyed"):
        device.allocate(4)
    device.reopen()
    device.allocate(4)


def test_marks_end_with_their_device(device: Device, faults: Faults) -> None:
    """Asking one must not reach for a device that is closed."""
    faults.late_polls = 100
    device.submit([ClearBuffer(device.allocate(4), 0, 4)])
    of_former = device.mark()
    device.reopen()
    assert of_former()
    device.submit([ClearBuffer(device.allocate(4), 0, 4)])
    of_lost = device.mark()
    assert not of_lost()
    native(device).destroy()
    assert of_lost()
    with pytest.raises(DeviceLostError):
        device.synchronize()
    assert of_lost()
    device.reopen()
    assert of_lost()


def test_a_closed_device_is_gone_until_it_is_opened_anew(device: Device) -> None:
    x = filled(device, [1] * N)
    device.close()
    device.close()
    with pytest.raises(DeviceLostError, match="was closed"):
        device.allocate(4)
    device.release(x)
    assert device.stats.buffers == 0
    for _ in range(3):
        device.reopen()
        assert words(device, filled(device, [1] * N), N) == [1] * N


def test_memory_of_a_former_device_is_given_back(device: Device) -> None:
    former = []
    for lost in (False, True):
        x = filled(device, [1] * N)
        device.submit([double(x, N)])
        former.append(native(device))
        if lost:
            former[-1].destroy()
            with pytest.raises(DeviceLostError):
                device.synchronize()
        device.reopen()
    assert [(one.closed, one.memory_bytes) for one in former] == [(True, 0)] * 2


def test_a_forked_child_leaves_the_device_alone(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu)
    x = filled(device, [1] * N)
    mark = device.mark()
    native(device).closed = True  # the parent's: any call is an error here
    device.disable(FORKED)
    for use in (lambda: device.allocate(4), device.synchronize, device.reopen, lambda: device.submit([])):
        with pytest.raises(ForkError, match="forked"):
            use()
    device.release(x)
    device.empty_cache()
    device.finish()
    device.close()
    mark()
