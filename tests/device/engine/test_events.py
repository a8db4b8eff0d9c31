"""Events: places in a queue, and the times between them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from tests.device.processes import assert_ends_well

from torch_webgpu.engine.record import engine

webgpu = torch.webgpu


def work(times: int) -> torch.Tensor:
    x = torch.full((128, 128), 1 / 128, device="webgpu")
    for _ in range(times):
        x = x @ x
    return x


def timed() -> torch.webgpu.Event:
    return webgpu.Event(enable_timing=True)


@pytest.fixture(params=["gpu clock", "host clock"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    device = engine().device(0)
    if request.param == "host clock":
        monkeypatch.setattr(device, "features", device.features - {"timestamp-query"})
    elif not device.has_timestamps:
        pytest.skip("the adapter has no timestamp queries")
    return request.param


def test_times_add_up_and_have_a_sign(clock: str) -> None:
    a, b, c = timed(), timed(), timed()
    a.record()
    first = work(4)
    b.record()
    second = work(16)
    c.record()
    assert a.elapsed_time(b) > 0
    assert b.elapsed_time(c) > 0
    assert a.elapsed_time(c) == pytest.approx(a.elapsed_time(b) + b.elapsed_time(c))
    assert b.elapsed_time(a) == -a.elapsed_time(b)
    assert a.elapsed_time(a) == 0
    assert a.query()
    assert c.query()
    torch.testing.assert_close(first.cpu(), second.cpu())


def test_the_time_of_the_work_lies_between_its_events(clock: str) -> None:
    work(8).sum().item()
    start, end = timed(), timed()
    before = time.perf_counter()
    start.record()
    time.sleep(0.02)
    work(8)
    end.record()
    end.synchronize()
    host_ms = (time.perf_counter() - before) * 1e3
    assert 20 <= start.elapsed_time(end) <= host_ms * 1.01


def test_recording_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = engine().device(0)
    if not device.has_timestamps:
        pytest.skip("the adapter has no timestamp queries")
    start, end = timed(), timed()
    with monkeypatch.context() as patch:
        for waits in ("download", "synchronize"):
            patch.setattr(device, waits, lambda *_: pytest.fail("recording an event waits"))
        start.record()
        work(4)
        end.record()
    assert start.elapsed_time(end) > 0


def test_an_event_is_recorded_again() -> None:
    start, end = timed(), timed()
    start.record()
    end.record()
    first = start.elapsed_time(end)
    time.sleep(0.02)
    end.record()
    assert start.elapsed_time(end) >= first + 20


def test_many_events_find_room() -> None:
    events = [timed() for _ in range(3000)]
    for event in events:
        event.record()
    times = [events[0].elapsed_time(event) for event in events[::500]]
    assert times == sorted(times)


def test_events_without_a_common_clock_are_refused() -> None:
    start = timed()
    start.record()
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(timed())
    untimed = webgpu.Event()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(untimed)


@pytest.mark.parametrize(
    "look", [lambda: timed().record(), lambda: webgpu.profile().start(), lambda: webgpu.explain(torch.ones, 1)]
)
def test_nothing_can_be_timed_or_explained_while_it_is_captured(look: Callable[[], object]) -> None:
    x = torch.ones(8, device="webgpu")

    def capture() -> None:
        with webgpu.graph(webgpu.Graph()):
            x.sin()
            look()

    with pytest.raises(RuntimeError, match="while a graph is being captured"):
        capture()
    assert (x + 1).cpu().eq(2).all()
    timed().record()


def test_torch_event_is_ours_for_webgpu() -> None:
    start, end = torch.Event(device="webgpu", enable_timing=True), torch.Event("webgpu:0", enable_timing=True)
    assert isinstance(start, webgpu.Event)
    assert isinstance(start, torch.Event)
    assert issubclass(webgpu.Event, torch.Event)
    start.record()
    result = work(4)
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    start.wait()
    torch.testing.assert_close(result.cpu(), torch.full((128, 128), 1 / 128))
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.Event("webgpu:99")


def test_torch_stream_is_ours_for_webgpu() -> None:
    stream, event = torch.Stream(device="webgpu"), torch.Event(device="webgpu")
    assert isinstance(stream, webgpu.Stream)
    assert isinstance(stream, torch.Stream)
    assert stream == webgpu.current_stream()
    with stream:
        result = work(2)
    assert stream.record_event(event) is event
    stream.wait_event(event)
    stream.synchronize()
    assert event.query()
    torch.testing.assert_close(result.cpu(), torch.full((128, 128), 1 / 128))
    assert isinstance(torch.Stream(device="webgpu", priority=1), webgpu.Stream)
    assert torch.Stream(stream_id=0, device_index=0, device_type=stream.device_type).device == stream.device
    assert type(torch.Stream("cpu")) is not webgpu.Stream
    assert issubclass(webgpu.Stream, torch.Stream)
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.Stream("webgpu:99")


def test_torch_event_is_pytorchs_for_other_devices() -> None:
    class Own(torch.Event):
        """A program's subclass."""

    assert not isinstance(torch.Event("cpu"), webgpu.Event)
    assert isinstance(torch.Event("cpu"), torch.Event)
    assert type(Own("cpu")) is Own
    assert not isinstance(torch.Event("cpu"), Own)
    if torch.accelerator.current_accelerator().type == "webgpu":
        assert isinstance(torch.Event(), webgpu.Event)


def test_a_reset_takes_the_times_with_it() -> None:
    printed = assert_ends_well(
        """
        start, end = torch.Event("webgpu", enable_timing=True), torch.Event("webgpu", enable_timing=True)
        start.record()
        end.record()
        torch.webgpu.reset_device()
        with pytest.raises(torch.webgpu.DeviceLostError, match="time"):
            start.elapsed_time(end)
        start.record()
        end.record()
        print(start.elapsed_time(end) >= 0)
        """
    )
    assert printed == "True\n"
