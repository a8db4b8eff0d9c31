"""Which lanes are idle, and the thread that flushes them: it finds every batch, and ends when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from torch_webgpu.engine import clock
from torch_webgpu.engine.clock import Content, FlushClock, Pauses
from torch_webgpu.engine.lane import Lane

PATIENCE_S = 60.0
HOUR_MS = 3_600_000.0
IDLE_LOOKS, PATIENCE_LOOKS = 2, 5
ENTRY: Any = object()


def looks_until_idle(pauses: Pauses, lane: Lane, between: Callable[[int], None] = lambda look: None) -> int | None:
    """How many looks find a lane busy before one finds it idle; None if none of many does."""
    for look in range(4 * PATIENCE_LOOKS):
        if pauses.look([lane], IDLE_LOOKS, PATIENCE_LOOKS):
            return look
        between(look)
    return None


def lane_of(size: int) -> Lane:
    lane = Lane(0, 0)
    lane.entries += [ENTRY] * size
    return lane


@pytest.mark.parametrize(("goes_on", "looks"), [(False, IDLE_LOOKS), (True, PATIENCE_LOOKS)])
def test_a_lane_is_idle_after_a_pause_as_long_as_what_it_holds_is_known_to_go_on(goes_on: bool, looks: int) -> None:
    asked = []

    def answer(lane: Lane) -> bool:
        asked.append(lane)
        return goes_on

    lane = lane_of(3)
    pauses = Pauses(answer)
    assert looks_until_idle(pauses, lane) == looks
    assert asked == [lane]
    assert pauses.look([lane], IDLE_LOOKS, PATIENCE_LOOKS) == [(lane, Content(0, 3))]  # until it is flushed


def test_a_lane_that_grows_is_not_idle() -> None:
    lane = lane_of(1)

    def grow(look: int) -> None:
        if look % IDLE_LOOKS == IDLE_LOOKS - 1:
            lane.entries.append(ENTRY)

    assert looks_until_idle(Pauses(lambda lane: False), lane, grow) is None


def test_a_lane_that_was_flushed_and_has_grown_to_the_same_size_is_not_idle() -> None:
    lane = lane_of(1)

    def again(look: int) -> None:
        lane.take()
        lane.entries.append(ENTRY)

    assert looks_until_idle(Pauses(lambda lane: False), lane, again) is None


def test_a_pause_ends_with_an_addition() -> None:
    """The next one is as long, and what is expected after it is asked again."""
    known = iter([True, False])
    pauses, lane = Pauses(lambda lane: next(known)), lane_of(1)
    for _ in range(PATIENCE_LOOKS):
        assert pauses.look([lane], IDLE_LOOKS, PATIENCE_LOOKS) == []
    lane.entries.append(ENTRY)
    assert looks_until_idle(pauses, lane) == IDLE_LOOKS


def test_each_lane_pauses_by_itself() -> None:
    pauses, one, other = Pauses(lambda lane: lane is other), lane_of(1), lane_of(2)
    for _ in range(IDLE_LOOKS):
        assert pauses.look([one, other], IDLE_LOOKS, PATIENCE_LOOKS) == []
    assert pauses.look([one, other], IDLE_LOOKS, PATIENCE_LOOKS) == [(one, Content(0, 1))]
    one.take()
    for _ in range(IDLE_LOOKS + 1, PATIENCE_LOOKS):
        assert pauses.look([other], IDLE_LOOKS, PATIENCE_LOOKS) == []
    assert pauses.look([other], IDLE_LOOKS, PATIENCE_LOOKS) == [(other, Content(0, 2))]


@pytest.mark.parametrize("waits", [0, 1, clock.WAITS], ids=["woken", "perhaps woken", "looking"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["new", "known to go on"])
def test_each_batch_is_flushed(monkeypatch: pytest.MonkeyPatch, waits: int, goes_on: bool) -> None:
    monkeypatch.setattr(clock, "WAITS", waits)
    monkeypatch.setattr(clock, "PATIENCE_S", 0.01)
    lanes: list[Lane] = []
    flushed: SimpleQueue[tuple[Lane, Content]] = SimpleQueue()

    def flush(lane: Lane, content: Content) -> None:
        lanes.remove(lane)
        flushed.put((lane, content))

    timer = FlushClock(lanes.copy, lambda lane: goes_on, flush)
    for size in range(1, 6):
        lane = lane_of(size)
        lanes.append(lane)
        timer.arm(1.0)
        assert flushed.get(timeout=PATIENCE_S) == (lane, Content(0, size))
    timer.stop()
    assert flushed.empty()


@pytest.mark.parametrize("delay_ms", [1.0, HOUR_MS], ids=["nothing to wait for", "a batch to wait for"])
def test_it_ends_at_once(delay_ms: float) -> None:
    lanes = [lane_of(1)] if delay_ms == HOUR_MS else []
    timer = FlushClock(lanes.copy, lambda lane: False, lambda lane, content: None)
    timer.arm(delay_ms)
    stopping = threading.Thread(target=timer.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
