"""Stamps of the GPU's clock, on the double's: a pass takes 100 ticks of 10 ns, and as much passes until the next."""

from __future__ import annotations

import pytest
from tests.unit.runtime import programs
from tests.unit.runtime.programs import add, double, filled, words
from tests.webgpu_double import CheckedWebGPU

from torch_webgpu.errors import DeviceLostError, WebGPUError
from torch_webgpu.runtime import timing
from torch_webgpu.runtime.commands import ClearBuffer
from torch_webgpu.runtime.device import Device

N = 64


def test_dispatches_are_timed_one_by_one(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    assert device.time([add(x, y, N, 1), double(y, N), double(y, N)]) == [1000, 1000, 1000]
    assert words(device, y, N) == [4] * N
    assert device.time([]) == []
    with pytest.raises(WebGPUError, match="only dispatches"):
        device.time([ClearBuffer(x, 0, 4)])


def test_stamps_are_taken_and_read_later(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    before = device.stamp()
    stamps = device.submit_timed([add(x, y, N, 1), ClearBuffer(x, 0, 4), double(y, N)])
    after = device.stamp()
    read = device.read_stamps([after, *stamps, before])  # in any order
    begins = [begin for begin, _ in read]
    assert begins == [6000, 2000, 4000, 0]
    assert {end - begin for begin, end in read} == {1000}
    assert device.read_stamps([]) == []


def test_more_stamps_than_a_query_set_holds(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PAIRS", 4)
    y = filled(device, [1] * N)
    stamps = device.submit_timed([double(y, N)] * 11)
    assert [begin for begin, _ in device.read_stamps(stamps)] == [2000 * k for k in range(11)]
    sets = len(device._opened.timer._sets)
    del stamps
    device.time([double(y, N)] * 11)
    assert len(device._opened.timer._sets) == sets  # of those that were given back


def test_a_refused_submission_keeps_no_stamps(device: Device) -> None:
    x = filled(device, [1] * N)
    with pytest.raises(WebGPUError):
        device.submit_timed([double(x, N), double(x, N)._replace(params=b"1234")])
    assert len(device._opened.timer._free) == timing._PAIRS
    assert words(device, x, 1) == [1]


def test_stamps_of_a_device_that_was_opened_anew(device: Device) -> None:
    stamp = device.stamp()
    device.reopen()
    with pytest.raises(DeviceLostError, match="its clock is gone"):
        device.read_stamps([stamp])


def test_without_timestamps_the_host_waits(webgpu: CheckedWebGPU) -> None:
    device = programs.device(webgpu, without=["timestamp-query"])
    y = filled(device, [1] * N)
    assert not device.has_timestamps
    for refused in (lambda: device.time([]), device.stamp, lambda: device.submit_timed([])):
        with pytest.raises(WebGPUError, match="no timestamp queries"):
            refused()
    times = device.submit_waiting([double(y, N), ClearBuffer(y, 0, 4), double(y, N)])
    assert len(times) == 2
    assert all(begin <= end for begin, end in times)
    assert words(device, y, 2) == [0, 4]
    device.close()
