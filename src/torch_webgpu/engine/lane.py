"""What is recorded and not submitted yet: a *lane* for each thread that records for a device.

Threads that shared one batch would interleave their operations differently each time, and no plan would ever come back.
So each has a lane of its own. Lanes know nothing of each other until one reads what another is to write, or writes what
another is to read or write: then the other one is submitted first, which is what the threads' own synchronisation asked
for. A thread that touches nothing of another's never waits for it, nor ends its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from threading import get_ident

from torch_webgpu.ir.operation import Operation

from .recorded_lists import FIRST_LIST_ADDRESS
from .tensor import ADDRESS_BITS

NOTHING: frozenset[int] = frozenset()
"""The numbers of no allocations."""
Entry = tuple[Operation, tuple[int, ...], tuple[int | float, ...]]
"""One recorded call: the operation, the address of each argument (a list: :class:`RecordedList`), flattened scalars."""


def numbers_of(addresses: Iterable[int]) -> list[int]:
    """The numbers of the allocations at these addresses, of lists those of all tensors."""
    allocation_numbers: list[int] = []
    for address in addresses:
        if address < FIRST_LIST_ADDRESS:
            allocation_numbers.append(address >> ADDRESS_BITS)
        else:
            allocation_numbers += address.allocation_numbers  # type: ignore[attr-defined]
    return allocation_numbers


class Lane:
    """What one thread has recorded for one device."""

    __slots__ = ("_reads", "_scanned", "_writes", "device", "entries", "listeners", "takes", "thread")

    def __init__(self, device: int, thread: int) -> None:
        self.device = device
        self.thread = thread
        self.entries: list[Entry] = []
        self.listeners: list[Callable[[list[Entry]], None]] = []  # are told what is taken
        self.takes = 0
        """How often it was taken from."""
        self._reads: set[int] = set()  # numbers of allocations, of the first ``_scanned`` entries
        self._writes: set[int] = set()
        self._scanned = 0

    def __len__(self) -> int:
        return len(self.entries)

    def take(self) -> list[Entry]:
        """The operations, which are no longer recorded."""
        entries, self.entries = self.entries, []
        self.takes += 1
        if self._scanned:
            self._reads, self._writes, self._scanned = set(), set(), 0
        for listener in self.listeners:
            listener(entries)
        return entries

    @property
    def reads(self) -> set[int]:
        """The numbers of the allocations it reads."""
        self._scan()
        return self._reads

    @property
    def writes(self) -> set[int]:
        """The numbers of the allocations it writes."""
        self._scan()
        return self._writes

    def touches(self, number: int) -> bool:
        """Whether it reads or writes an allocation."""
        return number in self.reads or number in self.writes

    def _scan(self) -> None:
        for op, addresses, _ in self.entries[self._scanned :]:
            self._reads.update(numbers_of(addresses[: op.n_inputs]))
            self._writes.update(numbers_of(addresses[op.n_inputs :]))
        self._scanned = len(self.entries)


class Lanes:
    """The lanes of all threads. Whoever calls anything here holds the engine's lock."""

    def __init__(self) -> None:
        self.current: dict[int, Lane] = {}
        """For each device the lane that was recorded in last."""
        self.busy: list[Lane] = []
        """Those in which something is recorded, in the order in which they began."""
        self._lanes: dict[tuple[int, int], Lane] = {}

    def of_thread(self, device: int) -> Lane:
        """The calling thread's lane, which becomes the current one."""
        key = device, get_ident()
        lane = self._lanes.get(key)
        if lane is None:
            # Threads come and go: lanes in which nothing is recorded are made again when they are needed.
            used = (*self.busy, *self.current.values())
            self._lanes = {k: other for k, other in self._lanes.items() if other in used}
            lane = self._lanes[key] = Lane(*key)
        self.current[device] = lane
        return lane

    def on(self, device: int | None) -> list[Lane]:
        """The busy lanes of a device, or of all."""
        return self.busy.copy() if device is None else [lane for lane in self.busy if lane.device == device]

    def touching(self, device: int, number: int) -> list[Lane]:
        """The lanes in which operations over this allocation are recorded."""
        return [lane for lane in self.on(device) if lane.touches(number)]

    def in_the_way(self, lane: Lane, read: Iterable[int], written: Iterable[int]) -> list[Lane]:
        """The other lanes that must be submitted before ``lane`` reads and writes these allocations."""
        read, written = set(read), set(written)
        return [
            other
            for other in self.on(lane.device)
            if other is not lane
            and not (
                other.writes.isdisjoint(read) and other.writes.isdisjoint(written) and other.reads.isdisjoint(written)
            )
        ]

    def needed_beside(self, lane: Lane | None) -> frozenset[int]:
        """The numbers of the allocations that other lanes have operations over."""
        busy = self.busy
        if len(busy) == 1 and busy[0] is lane:
            return NOTHING
        others = [other for other in busy if other is not lane and other.entries]
        return frozenset(chain.from_iterable((*other.reads, *other.writes) for other in others)) if others else NOTHING

    def clear(self, device: int | None = None) -> None:
        """Forgets what is recorded, for a device or for all."""
        for lane in self.on(device):
            lane.take()
            self.busy.remove(lane)
