"""The thread that submits what nobody completes: it finds every batch, and ends when it is told to."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from torch_webgpu.engine import clock
from torch_webgpu.engine.clock import FlushClock
from torch_webgpu.engine.lane import Lane

PATIENCE_S = 60.0
HOUR_MS = 3_600_000.0


@pytest.mark.parametrize("looks", [0, 1, clock.LOOKS], ids=["woken", "perhaps woken", "looking"])
def test_each_batch_is_flushed(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    monkeypatch.setattr(clock, "LOOKS", looks)
    held: dict[Lane, int] = {}
    flushed: SimpleQueue[tuple[Lane, int]] = SimpleQueue()

    def flush(lane: Lane, size: int) -> None:
        del held[lane]
        flushed.put((lane, size))

    timer, lane = FlushClock(held.copy, flush), Lane(0, 0)
    for size in range(1, 6):
        held[lane] = size
        timer.arm(1.0)
        assert flushed.get(timeout=PATIENCE_S) == (lane, size)
    timer.stop()
    assert flushed.empty()


@pytest.mark.parametrize("delay_ms", [1.0, HOUR_MS], ids=["nothing to wait for", "a batch to wait for"])
def test_it_ends_at_once(delay_ms: float) -> None:
    timer = FlushClock(dict, lambda lane, size: None)
    timer.arm(delay_ms)
    stopping = threading.Thread(target=timer.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
