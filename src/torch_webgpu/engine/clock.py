"""The clock that flushes a batch nobody completes, so that a slow program leaves no GPU idle."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from .interrupt import Uninterrupted
from .lane import Lane

Sizes = Callable[[], dict[Lane, int]]

IDLE_SECONDS = 0.002
"""A batch nothing was added to for so long belongs to a program that does something else."""
LOOK_SECONDS = 0.016
LOOKS = 32
"""How often, and at most how far apart, the thread looks for the next batch before it waits to be woken."""


class FlushClock:
    """A thread, started with the first batch, that sleeps until a batch is old enough.

    ``pending()``: how much each lane holds. ``flush(lane, size)`` submits a lane if it still holds so much, and raises
    nothing.
    """

    def __init__(self, pending: Sizes, flush: Callable[[Lane, int], None]) -> None:
        self._delay_s = 0.0  # how old a batch is to become
        self._pending = pending
        self._flush = flush
        self._thread: threading.Thread | None = None
        self._wake = _thread.allocate_lock()  # locked while the thread sleeps; an Event would have a lock of its own,
        self._wake.acquire()  # which the handler of a signal that comes meanwhile, and records, would wait for
        self._halt = _thread.allocate_lock()  # free from when the thread is to end
        self._halt.acquire()
        self._first_pending = 0.0

    def arm(self, delay_ms: float) -> None:
        """A batch has begun that is old enough when it is ``delay_ms`` old; 0 for never."""
        if delay_ms <= 0:
            return
        self._delay_s = delay_ms / 1000
        self._first_pending = monotonic()
        if self._thread is None:
            with Uninterrupted():
                thread = threading.Thread(target=self._tick, name="webgpu-flush", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is shutting down
                    return
                self._thread = thread
        if self._wake.locked():
            self._ring()

    def _ring(self) -> None:
        """Wakes the thread, which looks at all there is once it is awake."""
        with suppress(RuntimeError):  # it is awake, or somebody else was faster
            self._wake.release()

    def stop(self) -> None:
        """Ends the thread, and waits for that."""
        if self._thread is not None:
            self._halt.release()
            self._ring()
            self._thread.join()

    def _tick(self) -> None:
        while self._begun():
            while (left := self._first_pending + self._delay_s - monotonic()) > 0:
                if self._halted_within(left):
                    return
            # A batch that still grows is left to fill: cutting it here would make a plan of its own, never seen again.
            before: dict[Lane, int] = {}
            while recorded := self._pending():
                for lane, size in recorded.items():
                    if before.get(lane) == size:
                        self._flush(lane, size)
                before = recorded
                if self._halted_within(IDLE_SECONDS):
                    return

    def _begun(self) -> bool:
        """Waits until a batch has begun; False where there is to be none any more.

        A thread that is woken takes the time of the one that wakes it, at every step of which both want the
        interpreter: while the program is busy, it looks by itself.
        """
        for _ in range(LOOKS):
            if self._wake.acquire(blocking=False):
                return True
            if self._halted_within(min(self._delay_s, LOOK_SECONDS)):
                return False
        self._wake.acquire()
        return not self._halted_within(0)

    def _halted_within(self, seconds: float) -> bool:
        return self._halt.acquire(timeout=seconds)
