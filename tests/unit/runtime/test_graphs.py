"""Captured graphs and prepared submissions on the double: what is looked up once and encoded many times."""

from __future__ import annotations

import struct

import pytest
from tests.unit.runtime import programs
from tests.unit.runtime.programs import add, add_last, double, filled, words
from tests.webgpu_double import CheckedWebGPU, Faults

from torch_webgpu.errors import DeviceLostError, OutOfMemoryError
from torch_webgpu.runtime import captured_graph as graphs
from torch_webgpu.runtime.commands import ClearBuffer, CopyBuffer
from torch_webgpu.runtime.device import Device

N = 64


@pytest.mark.parametrize("without", [[], ["immediates"]], ids=["immediates", "uniform"])
def test_a_graph_runs_again_with_other_parameters(webgpu: CheckedWebGPU, without: list[str]) -> None:
    device = programs.device(webgpu, without=without)
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    graph = device.encode_graph(
        [ClearBuffer(y, 0, 4 * N), add(x, y, N, 1), add_last(y, x, N, 10), double(x, N), CopyBuffer(x, 0, y, 0, 4)]
    )
    assert graph.dispatches == 3
    assert words(device, x, 1) == [0]
    device.replay(graph)
    assert words(device, x, 1) == [22]
    for command, byte, value in ((1, 4, 5), (2, 4 * (programs.MANY - 1), 100)):
        data, at = graph.parameter(command, byte)
        struct.pack_into("I", data, at, value)
    device.replay(graph)
    device.replay(graph)
    assert words(device, x, 2) == [2 * (2 * (22 + 105) + 105)] * 2
    assert words(device, y, 1) == words(device, x, 1)
    assert graph.current()[1] == add(x, y, N, 5)
    graph.release()
    graph.release()
    device.close()


def test_a_graph_keeps_what_the_cache_evicts(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    graph = device.encode_graph([add(x, y, N, 3), add(x, y, N, 4), double(y, N)])
    cache = device.opened.pipelines
    cache._pipelines.limit = 1
    device.submit([add_last(x, y, N, 1)])
    device.submit([double(y, N)])
    assert device.stats.pipelines == 1
    device.replay(graph)
    assert words(device, y, N) == [8] * N
    graph.release()


def test_a_long_graph_takes_several_submissions(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "COMMANDS_PER_SUBMISSION", 4)
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    graph = device.encode_graph([add_last(x, y, N, 1), CopyBuffer(y, 0, x, 0, 4 * N)] * 5)
    before = device.submissions
    device.replay(graph)
    assert device.submissions == before + 3
    assert words(device, x, 1) == [5]
    graph.release()


def test_a_graph_without_room_for_its_parameters(device: Device, faults: Faults) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    commands = [add_last(x, y, N, 1)]
    device.submit(commands)
    faults.memory_bytes = programs.native(device).memory_bytes
    with pytest.raises(OutOfMemoryError, match="captured graph's parameters"):
        device.encode_graph(commands)
    faults.memory_bytes = None
    device.synchronize()
    assert words(device, y, 1) == [1]


def test_a_graph_is_lost_with_its_device(device: Device) -> None:
    y = filled(device, [1] * N)
    graph = device.encode_graph([double(y, N)])
    device.reopen()
    z = filled(device, [1] * N)
    with pytest.raises(DeviceLostError, match="this captured graph is lost"):
        device.replay(graph)
    assert not device.owns(graph)
    graph.release()
    assert words(device, z, 1) == [1]


def test_prepared_submissions_run_again_with_other_parameters(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    prepared = device.prepare_again("key", [add(x, y, N, 1), add_last(y, x, N, 10), ClearBuffer(y, 0, 4)])
    assert prepared is not None
    assert device.opened.prepared.get("key") is prepared
    device.submit_prepared(device.opened, prepared)
    assert words(device, x, 1) == [11]
    struct.pack_into("I", prepared.params[0], 4, 2)
    struct.pack_into("I", prepared.params[1], 4 * (programs.MANY - 1), 20)
    z = device.allocate(4 * N)
    device.submit_prepared(device.opened, prepared, lambda: [CopyBuffer(x, 0, z, 0, 4 * N)])
    assert words(device, z, 1) == [33]


def test_releasing_what_it_names_outdates_a_prepared_submission(device: Device) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    device.prepare_again("key", [add(x, y, N, 1)])
    device.release(y)
    assert device.opened.prepared.get("key") is not None  # its memory is pooled, and its bind group there
    device.empty_cache()
    assert device.opened.prepared.get("key") is None


def test_what_fails_while_it_is_encoded_is_not_submitted(device: Device) -> None:
    x = filled(device, [1] * N)
    prepared = device.prepare_again("key", [double(x, N)])
    assert prepared is not None

    def last() -> list[CopyBuffer]:
        raise KeyError("no")

    with pytest.raises(KeyError):
        device.submit_prepared(device.opened, prepared, last)
    assert words(device, x, 1) == [1]


def test_what_comes_last_may_release_what_was_encoded(device: Device) -> None:
    x, y, z = filled(device, [1] * N), device.allocate(4 * N), device.allocate(4 * N)
    prepared = device.prepare_again("key", [add(x, y, N, 1)])
    assert prepared is not None
    device.release(y)

    def last() -> list[CopyBuffer]:
        device.empty_cache()  # takes the memory of y, and the bind group with it
        return [CopyBuffer(x, 0, z, 0, 4 * N)]

    device.submit_prepared(device.opened, prepared, last)
    assert words(device, z, N) == [1] * N


def test_too_many_parameters_are_not_prepared(device: Device) -> None:
    x, y = device.allocate(4 * N), device.allocate(4 * N)
    assert device.prepare_again("key", [add_last(x, y, N, 1)] * 1025) is None
    assert device.opened.prepared.get("key") is None


@pytest.mark.parametrize("count", [63, 64, 100, 191, 192, 250])
@pytest.mark.parametrize("is_graph", [False, True], ids=["prepared", "graph"])
def test_a_gpu_that_has_nothing_to_do_begins_before_all_is_encoded(device: Device, count: int, is_graph: bool) -> None:
    x, y = filled(device, [0] * N), device.allocate(4 * N)
    commands = [add(x, y, N, 1), add(y, x, N, 1)] * (count // 2) + [add_last(x, y, N, 1)] * (count % 2)
    graph = device.encode_graph(commands) if is_graph else None
    prepared = None if is_graph else device.prepare_again("key", commands)
    expected = [1 + (count >= 64) + (count >= 160), 1, 1]
    device.synchronize()
    device.opened.encoder.note_idle()
    for turn, submissions in enumerate(expected, 1):
        before = device.submissions
        if graph is not None:
            device.replay(graph)
        else:
            assert prepared is not None
            device.submit_prepared(device.opened, prepared)
        assert device.submissions == before + submissions
        # Read without a wait that says so: the GPU may be busy for all that the host knows.
        assert words(device, y if count % 2 else x, 1) == [turn * (count - count % 2) + count % 2]
    if graph is not None:
        graph.release()
