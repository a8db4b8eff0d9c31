"""What is recorded and not submitted yet: a *lane* for each thread that records for a device.

Threads that shared one batch would interleave their operations differently each time, and no plan would ever come back.
So each has a lane of its own. Lanes know nothing of each other until one reads what another is to write, or writes what
another is to read or write: then the other one is submitted first, which is what the threads' own synchronisation asked
for. A thread that touches nothing of another's never waits for it, nor ends its batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from threading import get_ident
from typing import Any

from torch_webgpu.ir.graph import Node, Operation

from .bundles import FIRST_LIST_ADDRESS, Bundle
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation

NOTHING: frozenset[int] = frozenset()
"""The numbers of no allocations."""
Entry = tuple[Operation, tuple[int, ...], tuple[int | float, ...]]
"""One recorded call: the operation, the address of each argument (a list is a :class:`Bundle`), flattened scalars."""


def numbers_of(addresses: Iterable[int]) -> list[int]:
    """The numbers of the allocations at these addresses, of lists those of all tensors."""
    found: list[int] = []
    for address in addresses:
        if address < FIRST_LIST_ADDRESS:
            found.append(address >> ADDRESS_BITS)
        else:
            found += address.numbers  # type: ignore[attr-defined]
    return found


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


class Recording:
    """Operations taken from a lane, and what their addresses stand for.

    ``places``: the different addresses, in the order of first appearance, those of ``lists`` last. ``allocations``:
    what the others lie in. ``numbers``: the scalars of each operation. ``alive``: whether it can still be read when
    these operations have run, for each allocation, then for each list.

    ``key`` is what recordings with the same plan have in common, all but offsets and scalars, which are parameters:
    ``ops``; ``numbered``, every argument's place, one operation's after the other's; ``owners``, of each place the
    number of its allocation, or of its list, which are numbered after the allocations; ``alive``; ``common``, the
    tensors of lists that other arguments lie in, too: (list, position, number of the allocation; beyond those of lists
    if none but lists use it).
    """

    __slots__ = ("allocations", "key", "lists", "numbers", "places")

    numbers: tuple[tuple[int | float, ...], ...]

    def __init__(self, entries: list[Entry], known: Mapping[int, Allocation], needed: frozenset[int] = NOTHING) -> None:
        """``needed``: what others will read, so that it is alive even if no tensor is."""
        ops, addresses, self.numbers = zip(*entries) if entries else ((), (), ())
        places: dict[int, int] = {}
        numbered = tuple([places.setdefault(address, len(places)) for arguments in addresses for address in arguments])
        lists: list[Any] = []
        singles: Iterable[int] = places
        if places and max(places) >= FIRST_LIST_ADDRESS:
            lists = [address for address in places if address >= FIRST_LIST_ADDRESS]
            singles = [address for address in places if address < FIRST_LIST_ADDRESS]
            places = {address: number for number, address in enumerate((*singles, *lists))}
            numbered = tuple([places[address] for arguments in addresses for address in arguments])
        order: dict[int, int] = {}
        owners = tuple([order.setdefault(address >> ADDRESS_BITS, len(order)) for address in singles])
        self.places, self.lists = places, lists
        self.allocations = allocations = [known[number] for number in order]
        alive = tuple([a.alive for a in allocations])
        if needed:
            alive = tuple([lives or a.number in needed for lives, a in zip(alive, allocations)])
        if lists:
            owners += tuple(range(len(order), len(order) + len(lists)))
            alive += tuple([bundle.is_readable or not needed.isdisjoint(bundle.keys) for bundle in lists])
            self.key = ops, numbered, owners, alive, in_common(order, lists)
        else:
            self.key = ops, numbered, owners, alive, ()

    @property
    def ops(self) -> tuple[Operation, ...]:
        return self.key[0]

    @property
    def numbered(self) -> tuple[int, ...]:
        return self.key[1]

    @property
    def owners(self) -> tuple[int, ...]:
        return self.key[2]

    @property
    def alive(self) -> tuple[bool, ...]:
        return self.key[3]

    @property
    def common(self) -> tuple[tuple[int, int, int], ...]:
        return self.key[4]

    @property
    def first_list(self) -> int:
        """The place of the first list: before it are those of single tensors."""
        return len(self.places) - len(self.lists)

    def memory(self, lists: Sequence[int] = ()) -> list[Allocation]:
        """The allocations, then those of the tensors of these of its lists, which have some."""
        if not lists:
            return self.allocations
        return [*self.allocations, *chain.from_iterable([self.lists[n].allocations for n in lists])]

    def starts(self, lists: Sequence[int] = ()) -> list[int]:
        """How many bytes after the start of its allocation each place is, then each tensor of these of its lists, but
        for those whose tensors all start where their allocations do.
        """
        starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in self.places]
        if self.lists:
            del starts[self.first_list :]
            for n in lists:
                if not self.lists[n].is_aligned:
                    starts += self.lists[n].starts
        return starts

    @property
    def in_use(self) -> set[int]:
        """The numbers of all allocations that it uses."""
        singles = {a.number for a in self.allocations}
        return singles.union(*[bundle.keys for bundle in self.lists]) if self.lists else singles

    @property
    def dead(self) -> set[Allocation]:
        """The allocations that nobody can read when these operations have run."""
        return {a for a, alive in zip(self.allocations, self.alive) if not alive}

    def nodes(self) -> list[Node]:
        """The operations over allocations, or lists, and offsets in elements."""
        owned = [*self.allocations, *self.lists]
        numbers = iter(self.numbered)
        starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in self.places]
        nodes = []
        for op, params in zip(self.ops, self.numbers):
            places = [next(numbers) for _ in op.args]
            allocations = tuple([owned[self.owners[p]] for p in places])
            nodes.append(Node(op, allocations, tuple([starts[p] >> s for p, s in zip(places, op.shifts)]), params))
        return nodes


def in_common(order: Mapping[int, int], lists: Sequence[Bundle]) -> tuple[tuple[int, int, int], ...]:
    """See :class:`Recording`; ``order``: the numbers of the allocations that single tensors lie in, by their names."""
    singles = order.keys()
    common: set[int] = set()
    for k, bundle in enumerate(lists):
        if not bundle.keys.isdisjoint(singles):
            common |= bundle.keys & singles
        if bundle.shares:
            common |= {number for number, times in Counter(bundle.numbers).items() if times > 1}
        for other in lists[:k]:
            if not bundle.is_apart(other):
                common |= bundle.keys & other.keys
    if not common:
        return ()
    names = dict(order)
    found = []
    for k, bundle in enumerate(lists):
        if not bundle.keys.isdisjoint(common):
            for position, number in enumerate(bundle.numbers):
                if number in common:
                    name = names.setdefault(number, len(names) + len(lists))
                    found.append((k, position, name))
    return tuple(found)
