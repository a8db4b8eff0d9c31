"""Fences in a device's queue: what was submitted before one, whether that is done, when it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch_webgpu.errors import DeviceLostError

from .flush_reason import EVENT
from .interrupt import Uninterrupted
from .record import engine
from .sync import synchronize


class Fence:
    """The end of what is recorded for a device by now, which is submitted.

    ``timed``: the GPU notes its clock there, for :func:`times_ns`. One without timestamp queries is waited for, and
    the time is the host's. Raises RuntimeError for that in a capture.
    """

    def __init__(self, index: int, timed: bool = False) -> None:
        eng = engine()
        self.index = index
        self._stamp: Any = None  # the runtime's, until it is read
        self._time_ns = 0
        with Uninterrupted(), eng.lock:
            device = eng.device(index)
            if timed:
                eng.refuse("an event cannot take the time", index)
            if timed and not device.has_timestamps:
                synchronize(index)
                self._time_ns = time.perf_counter_ns()
            else:
                eng.flush(EVENT, index)
                self._stamp = device.stamp() if timed else None
            self._reached = device.mark()
            self._readbacks = eng.readbacks.begun(index)

    def is_reached(self) -> bool:
        """Whether the device has come to it. Downloads that nobody waited for are then there."""
        eng = engine()
        with Uninterrupted(), eng.lock:
            reached = self._reached()
            if reached and self._readbacks:
                eng.readbacks.finish(eng.device(self.index), self._readbacks)
            return reached


def times_ns(fences: Sequence[Fence]) -> list[int]:
    """When the device came to timed fences, all of one device, by one clock. Waits for the work before them."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        unread = [fence for fence in fences if fence._stamp is not None]
        if unread:
            try:
                read = eng.device(unread[0].index).read_stamps([fence._stamp for fence in unread])
            except DeviceLostError as error:
                raise DeviceLostError(f"the time of an event is lost: {error}") from None
            for fence, (begin_ns, _) in zip(unread, read, strict=True):
                fence._stamp, fence._time_ns = None, begin_ns
        return [fence._time_ns for fence in fences]
