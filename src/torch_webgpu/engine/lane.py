"""What is recorded and not submitted yet: a *lane* for each thread that records for a device.

Threads that shared one batch would interleave their operations differently each time, and no plan would ever come back.
So each has a lane of its own. Lanes know nothing of each other until one reads what another is to write, or writes what
another is to read or write: then the other one is submitted first, which is what the threads' own synchronisation asked
for. A thread that touches nothing of another's never waits for it, nor ends its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_webgpu.ir.graph import Node, Operation

from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation

if TYPE_CHECKING:
    from .lists import Batch

Entry = tuple[Operation, tuple[int, ...], tuple[int | float, ...]]
"""One recorded call: the operation, each argument's address, the flattened scalars."""


class Lane:
    """What one thread has recorded for one device: ordinary operations, or operations over lists, never both."""

    __slots__ = ("_reads", "_scanned", "_writes", "batch", "device", "entries", "listeners", "thread")

    def __init__(self, device: int, thread: int) -> None:
        self.device = device
        self.thread = thread
        self.entries: list[Entry] = []
        self.batch: Batch | None = None
        self.listeners: list[Callable[[list[Entry]], None]] = []  # are told what is taken
        self._reads: set[int] = set()  # numbers of allocations, of the first ``_scanned`` entries
        self._writes: set[int] = set()
        self._scanned = 0

    def __len__(self) -> int:
        return len(self.entries) if self.batch is None else len(self.batch)

    def take(self) -> list[Entry]:
        """The operations, which are no longer recorded."""
        entries, self.entries = self.entries, []
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
        """The numbers of the allocations it writes; for operations over lists, of all."""
        self._scan()
        return self._writes if self.batch is None else self.batch.keys

    def touches(self, number: int) -> bool:
        """Whether it reads or writes an allocation."""
        return number in self.reads or number in self.writes

    def _scan(self) -> None:
        for op, addresses, _ in self.entries[self._scanned :]:
            numbers = [address >> ADDRESS_BITS for address in addresses]
            self._reads.update(numbers[: op.n_inputs])
            self._writes.update(numbers[op.n_inputs :])
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
        return [lane for lane in self.busy if device is None or lane.device == device]

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
        others = [other for other in self.busy if other is not lane]
        return frozenset(chain.from_iterable((*other.reads, *other.writes) for other in others)) if others else _NONE

    def clear(self, device: int | None = None) -> None:
        """Forgets what is recorded, for a device or for all."""
        for lane in self.on(device):
            lane.take()
            lane.batch = None
            self.busy.remove(lane)


_NONE: frozenset[int] = frozenset()


class Recording(NamedTuple):
    """Operations taken from a lane, and what their addresses stand for.

    ``places``: the number of each address, in the order of first appearance; ``owners``: of each place the number of
    its allocation; ``alive``: whether it can still be read when these operations have run, for each allocation.
    """

    entries: list[Entry]
    ops: tuple[Operation, ...]
    places: dict[int, int]
    numbered: tuple[int, ...]  # every argument's place, one operation's after the other's
    owners: tuple[int, ...]
    allocations: list[Allocation]
    alive: tuple[bool, ...]

    @classmethod
    def of(cls, entries: list[Entry], known: Mapping[int, Allocation], needed: frozenset[int] = _NONE) -> Recording:
        """``needed``: what others will read, so that it is alive even if no tensor is."""
        ops, addresses, _ = zip(*entries) if entries else ((), (), ())
        flat = tuple(chain.from_iterable(addresses))
        places = dict.fromkeys(flat, 0)
        places = dict(zip(places, range(len(places))))
        numbered = tuple(map(places.__getitem__, flat))
        numbers = [address >> ADDRESS_BITS for address in places]
        first = dict.fromkeys(numbers)
        order = dict(zip(first, range(len(first))))
        allocations = [known[number] for number in order]
        if needed:
            alive = tuple([a.alive or a.number in needed for a in allocations])
        else:
            alive = tuple([a.alive for a in allocations])
        return cls(entries, ops, places, numbered, tuple(map(order.__getitem__, numbers)), allocations, alive)

    @property
    def starts(self) -> list[int]:
        """How many bytes after the start of its allocation each place is."""
        return [(address & OFFSET_MASK) - FIRST_BYTE for address in self.places]

    @property
    def numbers(self) -> list[tuple[int | float, ...]]:
        """The scalars of each operation."""
        return [params for _, _, params in self.entries]

    @property
    def key(self) -> tuple[Any, ...]:
        """What recordings with the same plan have in common: all but offsets and scalars, which are parameters."""
        return self.ops, self.numbered, self.owners, self.alive

    @property
    def dead(self) -> set[Allocation]:
        """The allocations that nobody can read when these operations have run."""
        return {a for a, alive in zip(self.allocations, self.alive) if not alive}

    def nodes(self) -> list[Node]:
        """The operations over allocations and offsets in elements."""
        numbers, starts = iter(self.numbered), self.starts
        nodes = []
        for op, addresses, params in self.entries:
            places = [next(numbers) for _ in addresses]
            allocations = tuple([self.allocations[self.owners[p]] for p in places])
            nodes.append(Node(op, allocations, tuple([starts[p] >> s for p, s in zip(places, op.shifts)]), params))
        return nodes
