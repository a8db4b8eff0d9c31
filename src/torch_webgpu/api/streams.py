"""Streams and events in torch.cuda's spelling.

An adapter has one queue, and what is recorded for it runs in program order. So all streams of an adapter are that
queue: work on "another" stream is never wrong, it just overlaps with nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE_NUMBER
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.fence import Fence, times_ns

from .device import DeviceLike, device, index_of, synchronize


class Stream(torch.Stream):
    """The queue of an adapter, under any number of names. ``priority`` changes nothing.

    ``torch.Stream(device="webgpu")`` makes one, too.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        # By its parts: asked for "a stream of this device", the C++ guard answers with one of webgpu:0.
        own = {"stream_id": 0, "device_index": index_of(device), "device_type": DEVICE_TYPE_NUMBER}
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
    """A place in an adapter's queue. ``torch.Event(device="webgpu", …)`` makes one, too.

    With ``enable_timing`` the GPU notes its clock when it comes to that place (a timestamp query), and
    :meth:`elapsed_time` reads the notes: recording waits for nothing. An adapter without timestamp queries is waited
    for in :meth:`record` instead, and the time is the host's. ``blocking`` changes nothing.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise NotImplementedError("WebGPU has no events between processes")
        return super().__new__(cls, device="webgpu", enable_timing=enable_timing)

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._home: int | None = None  # where it is recorded if no stream says so; None for the current adapter
        self._fence: Fence | None = None

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """Where it was recorded; None before that."""
        return None if self._fence is None else torch.device("webgpu", self._fence.index)

    def record(self, stream: Any = None) -> None:
        """Notes the place after everything recorded so far, and submits that."""
        if stream is not None:
            index = stream.device_index
        else:
            index = current_device() if self._home is None else self._home
        self._fence = Fence(index, self._timed)

    def query(self) -> bool:
        """Whether the work before it is done. True if it was never recorded."""
        return self._fence is None or self._fence.is_reached()

    def synchronize(self) -> None:
        """Waits for the work before it (and for what was recorded after it)."""
        if self._fence is not None and not self._fence.is_reached():
            synchronize(self._fence.index)

    def wait(self, stream: Any = None) -> None:
        """Makes later work of ``stream`` (the current one) wait for it; across adapters it is the host that waits."""
        waiting = current_device() if stream is None else stream.device_index
        if self._fence is not None and self._fence.index != waiting:
            self.synchronize()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to ``end_event``: both with ``enable_timing``, and recorded on one adapter.

        Waits for the work before them. ValueError for events that have no common clock.
        """
        for event in (self, end_event):
            if not event._timed:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        begin, end = self._fence, end_event._fence
        if begin is None or end is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if begin.index != end.index:
            raise ValueError("Both events must be recorded on the same device: each has a clock of its own.")
        begin_ns, end_ns = times_ns((begin, end))
        return (end_ns - begin_ns) / 1e6

    def __repr__(self) -> str:
        return f"<torch.webgpu.Event device={self.device}>"


def generic_event(
    device: torch.device, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
) -> Event:
    """What ``torch.Event`` makes for webgpu. With an index it is recorded there, whichever adapter is current."""
    event = Event(enable_timing, blocking, interprocess)
    event._home = None if device.index is None else index_of(device)
    return event


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
