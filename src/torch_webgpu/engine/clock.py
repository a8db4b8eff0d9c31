"""The clock that flushes a batch nobody completes, so that a slow program leaves no GPU idle."""

from __future__ import annotations

import _thread
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .causes import IDLE
from .interrupt import Uninterrupted

if TYPE_CHECKING:
    from .lane import Lane
    from .record import Engine

IDLE_SECONDS = 0.002
"""A batch nothing was added to for so long belongs to a program that does something else."""


class FlushClock:
    """A thread, started with the first batch, that sleeps until a batch is old enough."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wake = _thread.allocate_lock()  # locked while the thread sleeps; an Event would have a lock of its own,
        self._wake.acquire()  # which the handler of a signal that comes meanwhile, and records, would wait for
        self._first_pending = 0.0

    def arm(self) -> None:
        """A batch has begun."""
        if self._engine.settings.delay_ms <= 0:
            return
        self._first_pending = time.monotonic()
        if self._thread is None:
            with Uninterrupted():
                thread = threading.Thread(target=self._tick, name="webgpu-flush", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is shutting down
                    return
                self._thread = thread
        self._ring()

    def _ring(self) -> None:
        """Wakes the thread, which looks at all there is once it is awake."""
        if self._wake.locked():
            with suppress(RuntimeError):  # somebody else was faster
                self._wake.release()

    def stop(self) -> None:
        """Ends the thread, and waits for that."""
        if self._thread is not None:
            self._stopping = True
            self._ring()
            self._thread.join()

    def _tick(self) -> None:
        engine = self._engine
        while True:
            self._wake.acquire()
            if self._stopping:
                return
            while (left := self._first_pending + engine.settings.delay_ms / 1000 - time.monotonic()) > 0:
                time.sleep(left)
            # A batch that still grows is left to fill: cutting it here would make a plan of its own, never seen again.
            recorded: dict[Lane, int] = {}
            while engine.lanes.busy and not self._stopping:
                before, recorded = recorded, {lane: len(lane) for lane in engine.lanes.busy.copy()}
                for lane, size in recorded.items():
                    if before.get(lane) == size:
                        self._flush(lane, size)
                time.sleep(IDLE_SECONDS)

    def _flush(self, lane: Lane, size: int) -> None:
        """Submits what a lane holds, if that is still as much as it was."""
        engine = self._engine
        try:
            with engine.lock:
                # It may have been turned off meanwhile.
                if engine.capture is None and engine.settings.delay_ms > 0 and len(lane) == size:
                    engine.flush_lane(lane, IDLE)
        except Exception as error:
            engine.error = engine.error or error
