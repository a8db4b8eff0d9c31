"""Streams and events in torch.cuda's spelling.

An adapter has one queue, and what is recorded for it runs in program order. So all streams of an adapter are that
queue: work on "another" stream is never wrong, it just overlaps with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType

from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import engine

from .device import DeviceLike, device, index_of, synchronize


class Stream(torch.Stream):
    """The queue of an adapter, under any number of names. ``priority`` changes nothing."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        # By its parts: asked for "a stream of this device", the C++ guard answers with one of webgpu:0.
        own = {"stream_id": 0, "device_index": index_of(device), "device_type": DeviceType.PrivateUse1.value}
        return super().__new__(cls, **(kwargs or own))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._entered: list[StreamContext] = []

    def synchronize(self) -> None:
        """Waits for everything recorded for the adapter."""
        synchronize(self.device_index)

    def query(self) -> bool:
        """Whether everything recorded for the adapter is done; submits it, and does not wait."""
        return self.record_event().query()

    def record_event(self, event: Any = None) -> Any:
        """Records ``event``, or a new one, after the work so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Makes later work wait for an event. On one adapter it does anyway; for another adapter's the host waits."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Makes later work wait for another stream's work so far."""
        if stream.device != self.device:
            stream.synchronize()

    def __enter__(self) -> Stream:
        self._entered.append(StreamContext(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._entered.pop().__exit__(*exc)

    def __repr__(self) -> str:
        return f"<torch.webgpu.Stream device={self.device}>"


class Event(torch.Event):
    """A place in an adapter's queue.

    With ``enable_timing``, :meth:`record` waits for the adapter and takes the host's time: the difference of two events
    is how long the work between them took, and the program is slower for it. ``blocking`` changes nothing.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise NotImplementedError("WebGPU has no events between processes")
        return super().__new__(cls, device="webgpu", enable_timing=enable_timing)

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._index: int | None = None
        self._reached: Callable[[], bool] = lambda: True
        self._time_ns = 0

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """Where it was recorded; None before that."""
        return None if self._index is None else torch.device("webgpu", self._index)

    def record(self, stream: Any = None) -> None:
        """Notes the place after everything recorded so far, and submits that."""
        self._index = current_device() if stream is None else stream.device_index
        if self._timed:
            synchronize(self._index)
            self._time_ns = time.perf_counter_ns()
            self._reached = lambda: True
            return
        eng = engine()
        with eng.lock:
            eng.flush(self._index)
            self._reached = eng.device(self._index).mark()

    def query(self) -> bool:
        """Whether the work before it is done. True if it was never recorded."""
        with engine().lock:
            return self._reached()

    def synchronize(self) -> None:
        """Waits for the work before it (and for what was recorded after it)."""
        if not self.query():
            synchronize(self._index)

    def wait(self, stream: Any = None) -> None:
        """Makes later work of ``stream`` (the current one) wait for it; across adapters it is the host that waits."""
        if self._index not in (None, current_device() if stream is None else stream.device_index):
            self.synchronize()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to ``end_event``; both with ``enable_timing``, and recorded."""
        for event in (self, end_event):
            if not event._timed:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if event._index is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time_ns - self._time_ns) / 1e6

    def __repr__(self) -> str:
        return f"<torch.webgpu.Event device={self.device}>"


class StreamContext:
    """Context manager: makes a stream's adapter current inside the block; None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._device = device(None if stream is None else stream.device_index)

    def __enter__(self) -> None:
        self._device.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._device.__exit__(*exc)


def stream(stream: Any) -> StreamContext:
    """Context manager that selects a stream."""
    return StreamContext(stream)


def current_stream(device: DeviceLike = None) -> Stream:
    """The adapter's queue."""
    return Stream(device)


def default_stream(device: DeviceLike = None) -> Stream:
    """The adapter's queue."""
    return Stream(device)


def set_stream(stream: Any) -> None:
    """Makes a stream's adapter the current one."""
    if stream is not None:
        device(stream.device_index).__enter__()


def is_current_stream_capturing() -> bool:
    """False: nothing is being captured."""
    return False
