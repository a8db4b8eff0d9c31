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
from .recorded_lists import FIRST_LIST_ADDRESS, RecordedList
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK, Allocation


class Recording:
    """Operations taken from a lane, and what their addresses stand for.

    ``distinct``: the different addresses of arguments, in the order of first appearance, those of ``lists`` last.
    ``allocations``: what the others lie in; ``starts``: how many bytes after the start of that. ``scalars``: those of
    each operation. ``alive``: whether it can still be read when these operations have run, for each allocation, then
    for each list.

    ``key`` is what recordings with the same plan have in common, all but offsets and scalars, which are parameters:
    ``ops``; ``numbered``, of every argument the number of its address, one operation's after the other's; ``owners``,
    of each address the number of its allocation, or of its list, which are numbered after the allocations; ``alive``;
    ``common``, the tensors of lists that other arguments lie in, too: (list, position, number of the allocation; beyond
    those of lists if none but lists use it).
    """

    __slots__ = ("allocations", "distinct", "key", "lists", "scalars", "starts")

    scalars: tuple[tuple[int | float, ...], ...]

    def __init__(self, entries: list[Entry], known: Mapping[int, Allocation], needed: frozenset[int] = NOTHING) -> None:
        """``needed``: what others will read, so that it is alive even if no tensor is."""
        ops, addresses, self.scalars = zip(*entries) if entries else ((), (), ())
        distinct: dict[int, int] = {}
        numbered = tuple(
            [distinct.setdefault(address, len(distinct)) for arguments in addresses for address in arguments]
        )
        lists: list[Any] = []
        singles: Iterable[int] = distinct
        if distinct and max(distinct) >= FIRST_LIST_ADDRESS:
            lists = [address for address in distinct if address >= FIRST_LIST_ADDRESS]
            singles = [address for address in distinct if address < FIRST_LIST_ADDRESS]
            distinct = {address: number for number, address in enumerate((*singles, *lists))}
            numbered = tuple([distinct[address] for arguments in addresses for address in arguments])
        order: dict[int, int] = {}
        owners = tuple([order.setdefault(address >> ADDRESS_BITS, len(order)) for address in singles])
        self.distinct, self.lists = distinct, lists
        self.allocations = allocations = [known[number] for number in order]
        self.starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in singles]
        alive = tuple([a.alive for a in allocations])
        if needed:
            alive = tuple([lives or a.number in needed for lives, a in zip(alive, allocations)])
        if lists:
            owners += tuple(range(len(order), len(order) + len(lists)))
            alive += tuple(
                [tensor_list.is_readable or not needed.isdisjoint(tensor_list.keys) for tensor_list in lists]
            )
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
        """The number of the first list's address: before it are those of single tensors."""
        return len(self.distinct) - len(self.lists)

    def memory(self, lists: Sequence[int] = ()) -> list[Allocation]:
        """The allocations, then those of the tensors of these of its lists, which have some."""
        if not lists:
            return self.allocations
        return [*self.allocations, *chain.from_iterable([self.lists[n].allocations for n in lists])]

    def all_starts(self, lists: Sequence[int]) -> list[int]:
        """``starts``, then the same of each tensor of these lists. Lists whose tensors all start where their
        allocations do are left out.
        """
        unaligned = [self.lists[n] for n in lists if not self.lists[n].is_aligned]
        return [*self.starts, *chain.from_iterable([tensor_list.starts for tensor_list in unaligned])]

    @property
    def in_use(self) -> set[int]:
        """The numbers of all allocations that it uses."""
        singles = {a.number for a in self.allocations}
        return singles.union(*[tensor_list.keys for tensor_list in self.lists]) if self.lists else singles

    @property
    def dead(self) -> set[Allocation]:
        """The allocations that nobody can read when these operations have run."""
        return {a for a, alive in zip(self.allocations, self.alive) if not alive}

    def nodes(self) -> list[Node]:
        """The operations over allocations, or lists, and offsets in elements."""
        owned = [*self.allocations, *self.lists]
        numbers = iter(self.numbered)
        starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in self.distinct]
        nodes = []
        for op, params in zip(self.ops, self.scalars):
            arguments = [next(numbers) for _ in op.args]
            allocations = tuple([owned[self.owners[k]] for k in arguments])
            nodes.append(Node(op, allocations, tuple([starts[k] >> s for k, s in zip(arguments, op.shifts)]), params))
        return nodes


def in_common(order: Mapping[int, int], lists: Sequence[RecordedList]) -> tuple[tuple[int, int, int], ...]:
    """See :class:`Recording`; ``order``: the numbers of the allocations that single tensors lie in, by their names."""
    singles = order.keys()
    common: set[int] = set()
    for k, tensor_list in enumerate(lists):
        if not tensor_list.keys.isdisjoint(singles):
            common |= tensor_list.keys & singles
        if tensor_list.shares:
            common |= {number for number, times in Counter(tensor_list.allocation_numbers).items() if times > 1}
        for other in lists[:k]:
            if not tensor_list.is_apart(other):
                common |= tensor_list.keys & other.keys
    if not common:
        return ()
    names = dict(order)
    shared = []
    for k, tensor_list in enumerate(lists):
        if not tensor_list.keys.isdisjoint(common):
            for position, number in enumerate(tensor_list.allocation_numbers):
                if number in common:
                    name = names.setdefault(number, len(names) + len(lists))
                    shared.append((k, position, name))
    return tuple(shared)


def graph_of(
    recording: Recording,
    storage_of: Callable[[Allocation, bool], Storage] | None = None,
    scalars: Sequence[Sequence[Any]] | None = None,
    live: Sequence[bool] | None = None,
) -> Graph:
    """The graph of a recording, whose scalars and distinct in memory are given with each run.

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
        scalars=_scalar_words(recording.scalars) if scalars is None else scalars,
        lists=tuple(
            [
                TensorList(
                    _storages(tensor_list, alive[singles + n], describe),
                    tensor_list.is_aligned,
                    common.get(n, {}),
                    lives,
                )
                for n, (tensor_list, lives) in enumerate(zip(recording.lists, alive[singles:]))
            ]
        ),
    )


def _storage(allocation: Allocation, live: bool) -> Storage:
    return Storage(allocation.size_bytes, "new" if allocation.buffer is None else "input", live)


def _storages(
    tensor_list: RecordedList, live: bool, describe: Callable[[Allocation, bool], Storage]
) -> tuple[Storage, ...]:
    """Those of a list's tensors, also of one that has no allocations yet."""
    if tensor_list.allocations:
        return tuple([describe(a, live) for a in tensor_list.allocations])
    return tuple([Storage(size, "new", live) for size in tensor_list.sizes])


def _scalar_words(rows: Sequence[Sequence[object]]) -> list[list[Scalar]]:
    """Scalars that each run is given anew."""
    words, first = [], 0
    for row in rows:
        words.append([Scalar(first + k) for k in range(len(row))])
        first += len(row)
    return words
