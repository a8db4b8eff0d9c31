"""The GPU's clock: timestamp queries around compute passes, and between submissions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_webgpu.errors import DeviceLostError, WebGPUError

from .commands import Command, Dispatch

if TYPE_CHECKING:
    from .buffers import BufferPool
    from .encoder import Encoder
    from .implementation import NativeDevice
    from .transfer import Transfer

_PAIRS = 2048  # a query set holds at most 4096 queries
_STAMP_BYTES = 8
_RESOLVE_ALIGNMENT = 256


class Stamp:
    """Two queries of a set: the times before and after something. Given back to the timer when nobody holds it."""

    __slots__ = ("first", "free", "queries")

    def __init__(self, queries: Any, first: int, free: list[tuple[Any, int]]) -> None:
        self.queries = queries
        self.first = first
        self.free = free

    def __del__(self) -> None:
        self.free.append((self.queries, self.first))  # atomic, whichever thread collects


class Timer:
    """Runs dispatches one pass each and has the GPU note its clock before and after.

    Stamps are written by the queue and read later, so that timing makes nobody wait.
    """

    def __init__(self, native: NativeDevice, pool: BufferPool, encoder: Encoder, transfer: Transfer) -> None:
        self._native, self._pool, self._encoder, self._transfer = native, pool, encoder, transfer
        self._free: list[tuple[Any, int]] = []
        self._sets: list[Any] = []

    def _take(self) -> Stamp:
        if not self._free:
            queries = self._native.create_timestamps(2 * _PAIRS)
            self._sets.append(queries)
            # Taken from the end: neighbours in time are neighbours in the set, and resolved together.
            self._free += [(queries, first) for first in range(2 * (_PAIRS - 1), -1, -2)]
        return Stamp(*self._free.pop(), self._free)

    def close(self) -> None:
        """Releases the query sets."""
        for queries in self._sets:
            self._native.release_timestamps(queries)

    def submit(self, commands: Sequence[Command]) -> list[Stamp]:
        """Submits ``commands``; a stamp for each dispatch among them, in order. On an exception nothing was queued."""
        stamps: list[Stamp] = []

        def begin_pass(encoder: Any) -> Any:
            stamp = self._take()
            stamps.append(stamp)
            return self._native.begin_timed_pass(encoder, query_set=stamp.queries, first_query=stamp.first)

        self._encoder.submit(commands, begin_pass)
        return stamps

    def now(self) -> Stamp:
        """A stamp of the time when everything submitted so far is done. Its end means nothing."""
        stamp = self._take()
        encoder = self._native.create_encoder()
        # A pass without dispatches: WebGPU has no timestamps outside of passes.
        compute = self._native.begin_timed_pass(encoder, query_set=stamp.queries, first_query=stamp.first)
        self._native.end_pass(compute)
        self._native.release_pass(compute)
        self._native.run(encoder)
        return stamp

    def read(self, stamps: Sequence[Stamp]) -> list[tuple[int, int]]:
        """Waits for the work around the stamps; (begin, end) of each in nanoseconds of the GPU's clock."""
        if not stamps:
            return []
        if any(stamp.free is not self._free for stamp in stamps):
            raise DeviceLostError("the device was reset since this time was taken, and its clock is gone")
        # Only what was written may be resolved: some drivers wait for ever for the rest.
        starts: list[int] = []
        size = 0
        for k, stamp in enumerate(stamps):
            follows = k > 0 and stamp.queries == stamps[k - 1].queries and stamp.first == stamps[k - 1].first + 2
            if not follows:
                starts.append(k)
                size = -(-size // _RESOLVE_ALIGNMENT) * _RESOLVE_ALIGNMENT
            size += 2 * _STAMP_BYTES
        resolved = self._pool.allocate(size)
        try:
            encoder = self._native.create_encoder()
            offsets, at = [], 0
            for k, end in zip(starts, [*starts[1:], len(stamps)], strict=True):
                at = -(-at // _RESOLVE_ALIGNMENT) * _RESOLVE_ALIGNMENT
                first, count = stamps[k].first, 2 * (end - k)
                self._native.resolve_query_set(encoder, stamps[k].queries, first, count, resolved.handle, at)
                offsets += [at + 2 * _STAMP_BYTES * n for n in range(end - k)]
                at += count * _STAMP_BYTES
            self._native.run(encoder)
            (raw,) = self._transfer.download([(resolved, 0, size)])
        finally:
            self._pool.release(resolved)
        period_ns = self._native.timestamp_period_ns()
        ticks = raw.view(np.uint64)
        words = [offset // _STAMP_BYTES for offset in offsets]
        return [(round(int(ticks[w]) * period_ns), round(int(ticks[w + 1]) * period_ns)) for w in words]

    def time(self, commands: Sequence[Command]) -> list[int]:
        """Runs ``commands``, all dispatches, and returns how long each took in nanoseconds."""
        if not all(isinstance(command, Dispatch) for command in commands):
            raise WebGPUError("only dispatches can be timed")
        return [end - begin for begin, end in self.read(self.submit(commands))]

    def submit_waiting(self, commands: Sequence[Command]) -> list[tuple[int, int]]:
        """Submits command by command and waits after each; (begin, end) of each dispatch by the host's clock, in ns.

        For adapters without timestamp queries: includes what a submission and the wait cost.
        """
        self._encoder.check(commands)
        times = []
        for command in commands:
            begin_ns = time.perf_counter_ns()
            self._encoder.submit((command,))
            self._native.poll(wait=True)
            if isinstance(command, Dispatch):
                times.append((begin_ns, time.perf_counter_ns()))
        return times
