"""Recordings: operations taken from a lane, the key by which their plan comes back, and their graph where none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from torch_webgpu.ir.graph import Argument, Call, Graph, Storage, TensorList
from torch_webgpu.ir.operation import Node, Operation
from torch_webgpu.plan import Scalar

from .lane import NOTHING, Entry
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation
from .tensor_lists import FIRST_LIST_ADDRESS, Bundle


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


def graph_of(
    recording: Recording,
    storage_of: Callable[[Allocation, bool], Storage] | None = None,
    scalars: Sequence[Sequence[Any]] | None = None,
    live: Sequence[bool] | None = None,
) -> Graph:
    """The graph of a recording, whose scalars and places in memory are given with each run.

    ``storage_of(allocation, live)``: what the graph has for it; by default what has memory has contents. ``scalars``:
    of each operation, where they are known. ``live``: what can be seen at the end, for each allocation, then for each
    list; by default what is alive.
    """
    describe = storage_of or _storage
    singles, first = len(recording.allocations), recording.first_list
    alive = recording.alive if live is None else live
    numbers = iter(recording.numbered)
    members: dict[int, set[int]] = {}
    common: dict[int, dict[int, int]] = {}
    for n, position, storage in recording.common:
        members.setdefault(singles + n, set()).add(storage)
        common.setdefault(n, {})[position] = storage
    arguments = [Argument(k, owner, frozenset(members.get(owner, ()))) for k, owner in enumerate(recording.owners)]
    return Graph(
        calls=tuple([Call(op, tuple([arguments[next(numbers)] for _ in op.args])) for op in recording.ops]),
        tensors=first,
        storages=tuple([describe(a, lives) for a, lives in zip(recording.allocations, alive)]),
        scalars=_scalar_words(recording.numbers) if scalars is None else scalars,
        lists=tuple(
            [
                TensorList(_storages(bundle, alive[singles + n], describe), bundle.is_aligned, common.get(n, {}), lives)
                for n, (bundle, lives) in enumerate(zip(recording.lists, alive[singles:]))
            ]
        ),
    )


def _storage(allocation: Allocation, live: bool) -> Storage:
    return Storage(allocation.size_bytes, "new" if allocation.buffer is None else "input", live)


def _storages(bundle: Bundle, live: bool, describe: Callable[[Allocation, bool], Storage]) -> tuple[Storage, ...]:
    """Those of a list's tensors, also of one that has no allocations yet."""
    if bundle.allocations:
        return tuple([describe(a, live) for a in bundle.allocations])
    return tuple([Storage(size, "new", live) for size in bundle.sizes])


def _scalar_words(rows: Sequence[Sequence[object]]) -> list[list[Scalar]]:
    """Scalars that each run is given anew."""
    words, first = [], 0
    for row in rows:
        words.append([Scalar(first + k) for k in range(len(row))])
        first += len(row)
    return words
