"""The clock that flushes a batch nobody completes, so that a slow program leaves no GPU idle.

A batch that is cut where its thread happens to stand is a plan of its own, and so is what follows it: neither may ever
come back, and to make them takes longer than what the clock was to save. So only a lane whose thread is *idle* is
flushed (it sleeps, waits, or computes something else); one that is being recorded is cut by content alone. How long
nothing was added to it does not tell the two apart: on a busy machine, or under a profiler, a thread that records
pauses for tens of milliseconds, too. What was recorded before does:

- Operations that were recorded before, and went on, are expected to go on: the lane holds the beginning of a known
  recording. It is left alone, unless nothing comes for so long (``PATIENCE_S``) that the program must have changed.
- Otherwise nothing is known to follow: the batch once ended here, and its plan is known, or it is new and will need a
  plan wherever it ends. It is flushed when nothing was added to it for as long as the program chose (16 ms).

So a loop that pauses at some place is flushed there, from its first round on. In one that does not, the clock may cut
batches under load while their plans are new; each that was recorded once without a pause stays whole from then on.

Time is counted in looks of the clock's own thread: it does not pass while the whole process is stopped, or while
another thread does not let go of the interpreter. Recording takes no part in any of this.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import ceil
from typing import NamedTuple

from .interrupt import Uninterrupted
from .lane import Lane

PATIENCE_S = 0.25
"""How long a lane may pause that is expected to go on."""
"""Four times what was seen with six busy processes on two cores, or with a profiler that slows Python twentyfold."""
LOOKS_A_DELAY = 2
"""How often a lane is looked at in the time after which it is idle: one look would not tell a pause of its thread from
one of the process."""
SHORTEST_LOOK_S = 0.002
WAIT_S = 0.016
WAITS = 32
"""How often, and at most how far apart, the thread looks for the next batch before it waits to be woken."""


class Content(NamedTuple):
    """What a lane holds, without a reference to it: ``size`` operations, after it was taken from ``takes`` times."""

    takes: int
    size: int

    @staticmethod
    def of(lane: Lane) -> Content:
        return Content(lane.takes, len(lane.entries))


class Pauses:
    """For how many looks nothing was added to each lane, and which lanes are therefore idle.

    ``goes_on(lane)``: whether more is expected to follow what it holds; asked once a pause.
    """

    def __init__(self, goes_on: Callable[[Lane], bool]) -> None:
        self._goes_on = goes_on
        self._lanes: dict[Lane, tuple[Content, int, bool]] = {}  # what it held, for how many looks, whether it goes on

    def look(self, lanes: Iterable[Lane], idle_looks: int, patience_looks: int) -> list[tuple[Lane, Content]]:
        """The lanes that are idle by now, of all that hold something, and what they hold."""
        before, self._lanes = self._lanes, {}
        idle = []
        for lane in lanes:
            content = Content.of(lane)
            held, looks, goes_on = before.get(lane, (None, 0, False))
            looks = looks + 1 if content == held else 0
            if looks == idle_looks:
                goes_on = self._goes_on(lane)
            self._lanes[lane] = content, looks, goes_on
            if looks >= (patience_looks if goes_on else idle_looks):
                idle.append((lane, content))
        return idle


class FlushClock:
    """A thread, started with the first batch, that looks for lanes whose threads are idle, and flushes them.

    ``pending()``: the lanes that hold something. ``goes_on(lane)``: see :class:`Pauses`. ``flush(lane, content)``
    submits a lane if it still holds that, and raises nothing.
    """

    def __init__(
        self,
        pending: Callable[[], list[Lane]],
        goes_on: Callable[[Lane], bool],
        flush: Callable[[Lane, Content], None],
    ) -> None:
        self.delay_s = 0.0
        """For how long nothing was added to an idle lane."""
        self._pending = pending
        self._pauses = Pauses(goes_on)
        self._flush = flush
        self._thread: threading.Thread | None = None
        self._wake = _thread.allocate_lock()  # locked while the thread sleeps; an Event would have a lock of its own,
        self._wake.acquire()  # which the handler of a signal that comes meanwhile, and records, would wait for
        self.wants_arming = self._wake.locked
        """Whether a batch that begins has to :meth:`arm` it."""
        self._halt = _thread.allocate_lock()  # free from when the thread is to end
        self._halt.acquire()

    def arm(self, delay_ms: float) -> None:
        """A batch has begun, which is flushed when nothing was added to it for ``delay_ms``; 0 for never."""
        if delay_ms <= 0:
            return
        self.delay_s = delay_ms / 1000
        if self._thread is None:
            with Uninterrupted():
                thread = threading.Thread(target=self._tick, name="webgpu-flush", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is shutting down
                    return
                self._thread = thread
        if self.wants_arming():
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
            while lanes := self._pending():
                look_s = min(max(self.delay_s / LOOKS_A_DELAY, SHORTEST_LOOK_S), PATIENCE_S)
                idle_looks = ceil(self.delay_s / look_s)
                for lane, content in self._pauses.look(lanes, idle_looks, max(idle_looks, ceil(PATIENCE_S / look_s))):
                    self._flush(lane, content)
                if self._halted_within(look_s):
                    return

    def _begun(self) -> bool:
        """Waits until a batch has begun; False where there is to be none any more.

        A thread that is woken takes the time of the one that wakes it, at every step of which both want the
        interpreter: while the program is busy, it looks by itself.
        """
        for _ in range(WAITS):
            if self._wake.acquire(blocking=False):
                return True
            if self._halted_within(min(self.delay_s, WAIT_S)):
                return False
        self._wake.acquire()
        return not self._halted_within(0)

    def _halted_within(self, seconds: float) -> bool:
        locks_tick = sys.platform == "win32"
        if locks_tick:
            # There locks time out by the system's ticks, of 16 ms, and a delay of that is two looks. A sleep has a
            # timer of its own; the end of the program waits for one, a quarter of a second at most.
            time.sleep(seconds)
            return self._halt.acquire(blocking=False)
        return self._halt.acquire(timeout=seconds)
