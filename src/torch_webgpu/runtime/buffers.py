"""GPU memory: buffers, and the pool that hands them out again by size class."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from torch_webgpu.errors import OutOfMemoryError, WebGPUError
from torch_webgpu.plan.steps import size_class

from .tally import Tally

if TYPE_CHECKING:
    from .host_memory import Budget
    from .implementation import NativeDevice

_MIB = 1 << 20


class Owner(Protocol):
    """What a buffer goes back to."""

    def release(self, buffer: Buffer) -> None:
        """Takes a buffer back."""

    def retake(self, buffer: Buffer) -> None:
        """Undoes a :meth:`release`."""


class Buffer:
    """A piece of GPU memory of ``size_bytes``, usable by kernels and copies. Compared by identity."""

    __slots__ = (
        "bind_groups", "handle", "idle_since", "number", "owner", "pins", "released", "size_bytes", "start_bytes",
    )  # fmt: skip
    _numbers = count()

    def __init__(self, handle: Any, size_bytes: int) -> None:
        self.handle = handle  # None once the pool gave the memory back to the adapter
        self.size_bytes = size_bytes
        self.start_bytes = 0  # in the memory that the handle names
        self.number = next(Buffer._numbers)
        self.idle_since = 0  # on its pool's clock; 0 while it is in use
        self.bind_groups: set[Any] = set()  # keys of the pipeline cache's entries that name this buffer
        self.owner: Owner | None = None  # the captured graphs it is set apart for
        self.pins = 0  # captured graphs that name it without owning it
        self.released = False  # while pinned: goes back to its pool when the last of those graphs is gone

    def part(self, start_bytes: int, size_bytes: int) -> Buffer:
        """A part of it that kernels may bind, from a multiple of 256 bytes on; it is nobody's to release."""
        part = Buffer(self.handle, min(size_bytes, self.size_bytes - start_bytes))
        part.start_bytes = self.start_bytes + start_bytes
        return part

    def __repr__(self) -> str:
        return f"<Buffer {self.size_bytes} bytes at {id(self):#x}>"


_idle_since = attrgetter("idle_since", "number")

Exchange = tuple[int, int]
"""A step of :meth:`BufferPool.exchange`: a buffer's number, and the capacity it is to have, or 0 where it goes back."""


class BufferPool:
    """Buffers of one device. Freed ones wait for a request of their size class; the longest unused go first.

    The one that was made first serves a request: which one does then depends on nothing but the set of free ones, and a
    loop soon gets the same buffers at the same places each time, whose bind groups are there already.

    The pool keeps what it has reserved within a quarter (and 64 MiB) of the most that was ever in use, so that one
    whose sizes keep changing doesn't hoard the old ones. A steady loop finds every buffer again: where a size is asked
    for that had to go, as in a loop that needs other sizes at its peak than elsewhere, the pool keeps as much more from
    then on, up to the most in use once more.

    Evicted buffers go back to the adapter only at :meth:`retire`: commands that are not submitted yet may name them.
    """

    def __init__(
        self,
        native: NativeDevice,
        usage: int,
        max_buffer_bytes: int,
        on_evict: Callable[[Buffer], None],
        budget: Budget | None = None,
    ) -> None:
        self._native = native
        self._on_evict = on_evict
        self._usage = usage
        self._max_buffer_bytes = max_buffer_bytes // 4 * 4
        self._buffers: dict[int, Buffer] = {}  # by number, until the adapter has them back
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # heaps of numbers
        self._capacities: dict[int, int] = {}  # of sizes asked for lately
        self._clock = 0  # counts releases
        self._gone: Counter[int] = Counter()  # by size, evicted buffers that nothing was made for since
        self._missed_bytes = 0  # of evicted buffers that had to be made again
        self.limit_bytes: int | None = None
        """The most that this process takes of the adapter's memory; None where nobody has set a limit."""
        self.evicted: list[Buffer] = []
        """Buffers for :meth:`retire`."""
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.live_buffers = 0
        self.peak_live_buffers = 0
        self.returned_buffers = 0
        self.returned_bytes = 0
        self.forgotten = (0, 0)  # buffers and bytes in use when the accumulated counters were reset
        # Of what the adapter gave us: buffers in use, pooled ones, and evicted ones it has not got back yet.
        self.created = Tally()
        self.reserved = Tally()  # bytes
        self._budget = budget  # of the machine's memory, if that is what buffers are made of
        if budget is not None:
            budget.join(self)

    @property
    def reserved_bytes(self) -> int:
        return self.reserved.current

    @property
    def free_sizes(self) -> list[int]:
        """The size in bytes of every buffer that is not in use."""
        return [buffer.size_bytes for buffer in self._buffers.values() if buffer.idle_since]

    def reset_peaks(self) -> None:
        """The most there ever was starts again from what is in use now."""
        self.peak_allocated_bytes, self.peak_live_buffers = self.allocated_bytes, self.live_buffers
        self.created.reset_peak()
        self.reserved.reset_peak()

    def reset_accumulated(self) -> None:
        """What was allocated and freed so far is forgotten."""
        self.forgotten = (self.live_buffers, self.allocated_bytes)
        self.returned_buffers = self.returned_bytes = 0
        self.created.reset_accumulated()
        self.reserved.reset_accumulated()

    def in_use(self) -> tuple[Tally, Tally]:
        """Buffers in use, in number and in bytes."""
        number, size = self.live_buffers, self.allocated_bytes
        returned, returned_bytes = self.returned_buffers, self.returned_bytes
        return (
            Tally(number, self.peak_live_buffers, number + returned - self.forgotten[0], returned),
            Tally(size, self.peak_allocated_bytes, size + returned_bytes - self.forgotten[1], returned_bytes),
        )

    @property
    def pooled_bytes(self) -> int:
        """Of the buffers that are kept for reuse."""
        return self.reserved.current - self.allocated_bytes - sum([buffer.size_bytes for buffer in self.evicted])

    @property
    def pooled_buffers(self) -> int:
        return self.created.current - self.live_buffers - len(self.evicted)

    def capacity(self, size_bytes: int) -> int:
        """The size of the buffer that :meth:`allocate` would give."""
        capacity = self._capacities.get(size_bytes)
        if capacity is None:
            if len(self._capacities) >= 4096:
                self._capacities.clear()
            capacity = min(size_class(size_bytes), max(self._max_buffer_bytes, size_bytes))
            self._capacities[size_bytes] = capacity
        return capacity

    def allocate(self, size_bytes: int, make_room: bool = True) -> Buffer:
        """A buffer of at least ``size_bytes``; its contents are undefined. Raises OutOfMemoryError.

        ``make_room``: evicted buffers may go back to the adapter at once, since all commands have been submitted.
        """
        return self._take(size_bytes, self.capacity(size_bytes), make_room)

    def _take(self, size_bytes: int, capacity: int, make_room: bool) -> Buffer:
        free = self._free[capacity]
        if free:
            buffer = self._buffers[heappop(free)]
            buffer.idle_since = 0
        else:
            self._trim(capacity)
            if make_room:
                self.retire()
            buffer = self._create(size_bytes, capacity)
        self.live_buffers += 1
        self.allocated_bytes += capacity
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.peak_live_buffers = max(self.peak_live_buffers, self.live_buffers)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Takes a buffer back. All work that uses it has been submitted, and queues run in order: it can be reused."""
        capacity = buffer.size_bytes
        if buffer.idle_since:
            raise WebGPUError(f"{buffer} was released twice")
        heappush(self._free[capacity], buffer.number)
        self._clock += 1
        buffer.idle_since = self._clock
        self.returned_buffers += 1
        self.returned_bytes += capacity
        self.live_buffers -= 1
        self.allocated_bytes -= capacity

    def retake(self, buffer: Buffer) -> None:
        """Undoes a :meth:`release`."""
        capacity = buffer.size_bytes
        if buffer in self.evicted:
            self.evicted.remove(buffer)
            self._gone[capacity] -= 1
        else:
            self._remove(buffer)
        buffer.idle_since = 0
        self.returned_buffers -= 1
        self.returned_bytes -= capacity
        self.live_buffers += 1
        self.allocated_bytes += capacity

    def exchange(self, steps: Sequence[Exchange], before: Sequence[Buffer | None]) -> list[Buffer | None]:
        """Takes and gives back memory, in this order, as commands will need it: all of a submission in one call.

        ``(number, capacity)`` takes a buffer of that capacity as number so-and-so of ``before``, if there is none; with
        capacity 0 that buffer goes back, and stays in the list. Returns the buffers by number then. On an exception
        nothing has happened.
        """
        buffers = [*before]
        heaps, known, clock = self._free, self._buffers, self._clock + 1
        self._clock = clock
        done = 0
        try:
            for done, (number, capacity) in enumerate(steps):  # noqa: B007  says which one failed
                buffer = buffers[number]
                if not capacity:
                    if buffer.pins or buffer.owner is not None or buffer.idle_since:  # type: ignore[union-attr]
                        self.give_back(buffer)  # type: ignore[arg-type]  # which refuses one that was released
                    else:
                        size = buffer.size_bytes  # type: ignore[union-attr]
                        heappush(heaps[size], buffer.number)  # type: ignore[union-attr]
                        buffer.idle_since = clock  # type: ignore[union-attr]
                        self.allocated_bytes -= size
                        self.live_buffers -= 1
                        self.returned_buffers += 1
                        self.returned_bytes += size
                elif buffer is None:
                    free = heaps[capacity]
                    if free:
                        buffers[number] = buffer = known[heappop(free)]
                        buffer.idle_since = 0
                        self.live_buffers += 1
                        self.allocated_bytes = allocated = self.allocated_bytes + capacity
                        if allocated > self.peak_allocated_bytes:
                            self.peak_allocated_bytes = allocated
                        if self.live_buffers > self.peak_live_buffers:
                            self.peak_live_buffers = self.live_buffers
                    else:
                        buffers[number] = self._take(capacity, capacity, make_room=False)
        except BaseException:
            self.undo_exchange(steps[:done], before, buffers)
            raise
        return buffers

    def undo_exchange(
        self, steps: Sequence[Exchange], before: Sequence[Buffer | None], buffers: Sequence[Buffer | None]
    ) -> None:
        """Undoes an :meth:`exchange` that made ``buffers`` of ``before``, for commands never submitted."""
        for number, capacity in reversed(steps):
            buffer: Any = buffers[number]
            if not capacity:
                self.take_back(buffer)
            elif before[number] is None:
                self.give_back(buffer)

    def give_back(self, buffer: Buffer) -> None:
        """:meth:`release`, to the pool it came from, and not before no captured graph names it any more."""
        if buffer.pins:
            buffer.released = True
        else:
            (buffer.owner or self).release(buffer)

    def give_back_all(self, buffers: Sequence[Buffer]) -> None:
        """:meth:`give_back` of many."""
        self.exchange(list(zip(range(len(buffers)), repeat(0))), buffers)

    def take_back(self, buffer: Buffer) -> None:
        """Undoes a :meth:`give_back`."""
        if buffer.pins:
            buffer.released = False
        else:
            (buffer.owner or self).retake(buffer)

    def empty(self) -> None:
        """Gives every pooled buffer back to the adapter. All commands that name one have been submitted."""
        self.evicted += self._idle()
        self._free.clear()
        self._gone.clear()
        self._missed_bytes = 0
        self.retire()

    def close(self) -> None:
        """Gives all buffers back to the adapter, those in use, too: the device is gone. No bind group names them."""
        for buffer in self._buffers.values():
            self._native.release_buffer(buffer.handle)
            buffer.handle = None
        self._buffers.clear()
        self.reserved.remove(self.reserved.current)  # a budget may count it until nobody holds the pool

    def retire(self) -> None:
        """Gives evicted buffers back to the adapter. All commands that name one have been submitted."""
        for buffer in self.evicted:
            self._on_evict(buffer)
            self._native.release_buffer(buffer.handle)
            buffer.handle = None
            del self._buffers[buffer.number]
            self.created.remove(1)
            self.reserved.remove(buffer.size_bytes)
        self.evicted.clear()

    def _create(self, size_bytes: int, capacity: int) -> Buffer:
        if size_bytes > self._max_buffer_bytes:
            raise OutOfMemoryError(
                f"WebGPU out of memory. A buffer of {_human(size_bytes)} exceeds this adapter's limit of "
                f"{_human(self._max_buffer_bytes)} for one buffer (max-buffer-size).\n{self.summary()}"
            )
        if self.limit_bytes is not None and self.reserved_bytes + capacity > self.limit_bytes:
            raise OutOfMemoryError(
                f"WebGPU out of memory. Tried to allocate {_human(size_bytes)}, but this process may use no more than "
                f"{_human(self.limit_bytes)} (see torch.webgpu.set_per_process_memory_fraction).\n{self.summary()}"
            )
        if self._budget is not None and (refusal := self._budget.refusal(capacity)):
            raise OutOfMemoryError(f"webgpu: tried to allocate {_human(size_bytes)}, but {refusal}.\n{self.summary()}")
        handle = self._native.create_buffer(capacity, self._usage)
        errors = self._native.sink.take()
        if not errors:
            self.created.add(1)
            self.reserved.add(capacity)
            buffer = Buffer(handle, capacity)
            self._buffers[buffer.number] = buffer
            if self._gone[capacity]:
                self._gone[capacity] -= 1
                self._missed_bytes += capacity
            return buffer
        self._native.release_buffer(handle)
        if any(kind != "out of memory" for kind, _ in errors):
            raise WebGPUError("\n".join(message for _, message in errors))
        raise OutOfMemoryError(
            f"WebGPU out of memory. The adapter has none left, tried to allocate {_human(size_bytes)}.\n"
            f"{self.summary()}"
        )

    def _trim(self, wanted_bytes: int) -> None:
        peak = max(self.peak_allocated_bytes, self.allocated_bytes + wanted_bytes)
        limit = peak + max(peak // 4, 64 * _MIB) + min(self._missed_bytes, peak)
        excess = self.allocated_bytes + self.pooled_bytes + wanted_bytes - limit
        if excess <= 0:
            return
        excess += limit // 16  # looking for the longest unused ones takes time: not for every new buffer
        leaving = []
        for buffer in self._idle():
            leaving.append(buffer)
            excess -= buffer.size_bytes
            if excess <= 0:
                break
        self._evict(leaving)

    def _idle(self) -> list[Buffer]:
        """The free buffers, the longest unused first."""
        free = [self._buffers[number] for numbers in self._free.values() for number in numbers]
        return sorted(free, key=_idle_since)

    def _evict(self, leaving: Sequence[Buffer]) -> None:
        for buffer in leaving:
            self._remove(buffer)
        self.evicted += leaving
        self._gone.update([buffer.size_bytes for buffer in leaving])

    def _remove(self, buffer: Buffer) -> None:
        free = self._free[buffer.size_bytes]
        free.remove(buffer.number)
        heapify(free)

    def summary(self) -> str:
        """A few lines for people: what is in use, pooled, and the most there ever was."""
        return (
            f"  in use   {_human(self.allocated_bytes):>12} in {self.live_buffers} buffers\n"
            f"  pooled   {_human(self.pooled_bytes):>12} in {self.pooled_buffers} buffers\n"
            f"  reserved {_human(self.reserved_bytes):>12}\n"
            f"  peak use {_human(self.peak_allocated_bytes):>12}"
        )


def _human(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
