"""When each step of a collective was done, for whoever looks on: ``torch.profiler`` and ``torch.webgpu.profile``.

Where nobody does, a collective has no timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from torch.autograd import profiler
from torch.futures import Future

CALLED, READ, ISSUED, REDUCED, UPLOADED = STEPS = ("called", "read", "issued", "reduced", "uploaded")
"""The program has called it. This rank's tensors are where they are exchanged: in the host's memory, or the first chunk
in shared memory. The exchange has begun. What all ranks gave is there, and reduced. The results are in the tensors."""


@dataclass
class Timeline:
    """A collective on this rank, and the times of its steps by ``time.perf_counter_ns``.

    ``in_bytes``, ``out_bytes``: of the tensors that this rank reads, and writes. ``transport``: what carries it.
    ``error``: why it ended before it was complete.
    """

    collective: str
    group: str
    rank: int
    size: int
    in_bytes: int
    out_bytes: int
    transport: str = ""
    error: str = ""
    times_ns: dict[str, int] = field(default_factory=dict)
    _ends: dict[str, Future[None]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The larger of what goes in and what comes out."""
        return max(self.in_bytes, self.out_bytes)

    def begin(self) -> None:
        """It was called just now."""
        self.times_ns[CALLED] = perf_counter_ns()
        if profiler._is_profiler_enabled:
            what = f"{self.size_bytes} bytes, group {self.group!r}, rank {self.rank} of {self.size}"
            for step in (UPLOADED, REDUCED, ISSUED, READ):
                self._ends[step] = show_range(f"webgpu::{self.collective} {step} ({what})")

    def mark(self, step: str) -> None:
        """A step was done just now."""
        self.times_ns[step] = perf_counter_ns()
        if self._ends:
            self._ends.pop(step).set_result(None)

    def fail(self, error: BaseException) -> None:
        """Nothing more will be done."""
        self.error = str(error) or type(error).__name__
        for end in self._ends.values():
            end.set_result(None)
        self._ends = {}


def show_range(name: str) -> Future[None]:
    """A range in this thread's profile that ends when the future is completed, in whichever thread."""
    end: Future[None] = Future()
    shown: Any = profiler.record_function(name)
    shown.__enter__()
    shown._call_end_callbacks_on_future(end)
    return end


_watchers: list[Callable[[Timeline], None]] = []


def is_watched() -> bool:
    """Whether anybody looks on."""
    return bool(_watchers) or profiler._is_profiler_enabled


def begun(timeline: Timeline) -> Timeline:
    """That of a collective which is called now, shown to all who look on."""
    for watcher in _watchers:
        watcher(timeline)
    timeline.begin()
    return timeline


def watch(watcher: Callable[[Timeline], None]) -> None:
    """``watcher(timeline)`` is called when a collective is called, in any thread. Times are added as it goes on."""
    _watchers.append(watcher)


def unwatch(watcher: Callable[[Timeline], None]) -> None:
    """Not any more."""
    _watchers.remove(watcher)


@contextmanager
def watching() -> Iterator[list[Timeline]]:
    """Those of the collectives that are called inside."""
    seen: list[Timeline] = []
    watch(seen.append)
    try:
        yield seen
    finally:
        unwatch(seen.append)
