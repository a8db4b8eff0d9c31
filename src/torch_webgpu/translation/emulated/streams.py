"""Streams and events of targets with one queue, which a program cannot choose: every stream is that queue."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import torch

from .target import HERE, DeviceLike


class Stream:
    """The queue of the device, under any number of names. ``priority`` changes nothing."""

    def __init__(self, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = HERE.device(device)
        self.device_index = self.device.index or 0
        self.priority = priority
        self.stream_id = 0

    def synchronize(self) -> None:
        """Waits for the device."""
        HERE.synchronize()

    def query(self) -> bool:
        """Whether everything is done: on the CPU it is."""
        self.synchronize()
        return True

    def record_event(self, event: Any = None) -> Any:
        """Records ``event``, or a new one, after the work so far."""
        event = event_class()() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Later work comes later in any case."""

    def wait_stream(self, stream: Any) -> None:
        """Later work comes later in any case."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: Any) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)


class HostEvent:
    """A moment of the CPU, whose work is done when it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._time_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        """Notes the time."""
        self._time_ns = perf_counter_ns()

    def query(self) -> bool:
        """True."""
        return True

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is left to wait for."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Milliseconds from this event to ``end_event``, both with ``enable_timing`` and recorded."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time_ns is None or end_event._time_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time_ns - self._time_ns) / 1e6


class MetalEvent(torch.mps.Event):
    """``torch.mps.Event`` with the arguments of torch.cuda's."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        super().__init__(enable_timing)

    def record(self, stream: Any = None) -> None:
        """Notes the place in the queue."""
        super().record()

    def wait(self, stream: Any = None) -> None:
        """Makes later work wait for it."""
        super().wait()


def event_class() -> type[HostEvent] | type[MetalEvent]:
    """The target's class of events."""
    return MetalEvent if HERE.type == "mps" else HostEvent


class StreamContext:
    """Context manager that selects a stream: the one there is."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: Any) -> None:
        return None


def stream(stream: Any) -> StreamContext:
    """Context manager that selects a stream: the one there is."""
    return StreamContext(stream)


def current_stream(device: DeviceLike = None) -> Stream:
    """The device's queue."""
    return Stream(device)


def default_stream(device: DeviceLike = None) -> Stream:
    """The device's queue."""
    return Stream(device)


def set_stream(stream: Any) -> None:
    """Nothing to choose from."""


def get_sync_debug_mode() -> int:
    """0, "default": what waits is not watched."""
    return 0


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Nothing to keep: memory is used again in the order of the one queue."""
