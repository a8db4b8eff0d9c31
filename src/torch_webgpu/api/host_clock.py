"""The clock of what the host does for devices: nested spans, with the line of the program that brought them about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch_webgpu.aten.dispatch.call_site import program_line
from torch_webgpu.runtime.observer import Observed, Observer

HOST_KINDS = ("python", "record", "flush", "plan", "encode", "submit", "upload", "wait", "fallback")
"""What the host does. "python" is the program itself; without ``record_ops`` it includes recording."""


@dataclass(frozen=True)
class HostEvent:
    """Something the host did, of a kind of :data:`HOST_KINDS`. Times in microseconds since the clock's start;
    ``self_us``: without the events inside it. ``line``: the program's, as ``train.py:33``; empty in threads that run
    none of it, such as autograd's.
    """

    kind: str
    detail: str
    thread: int
    start_us: float
    duration_us: float
    self_us: float
    line: str = ""


class _Span:
    """One that is underway. ``inside_ns``: what the spans inside it took."""

    __slots__ = ("inside_ns", "line")

    def __init__(self, line: str) -> None:
        self.inside_ns = 0
        self.line = line


class HostClock:
    """Tells ``ended`` of each span, from the thread that it was in."""

    def __init__(self, ended: Callable[[HostEvent], None]) -> None:
        self.start_ns = time.perf_counter_ns()
        self._ended = ended
        self._thread = threading.local()

    def us(self, host_ns: int) -> float:
        """Microseconds since the start."""
        return (host_ns - self.start_ns) / 1e3

    @contextmanager
    def span(self, kind: str, detail: str = "") -> Iterator[None]:
        """Surrounds what a thread does. The outermost looks for the program's line, which those inside it share."""
        outer: _Span | None = getattr(self._thread, "span", None)
        span = self._thread.span = _Span(program_line() if outer is None else outer.line)
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            took_ns = time.perf_counter_ns() - begin_ns
            self._thread.span = outer
            if outer is not None:
                outer.inside_ns += took_ns
            own_us = (took_ns - span.inside_ns) / 1e3
            thread = threading.get_ident()
            self._ended(HostEvent(kind, detail, thread, self.us(begin_ns), took_ns / 1e3, own_us, span.line))


class HostObserver(Observer):
    """Times what the host does for one device."""

    def __init__(self, device: Observed, clock: HostClock) -> None:
        super().__init__(device)
        self.clock = clock

    @contextmanager
    def span(self, kind: str, detail: str = "") -> Iterator[None]:
        with self.clock.span(kind, detail), super().span(kind, detail):
            yield
