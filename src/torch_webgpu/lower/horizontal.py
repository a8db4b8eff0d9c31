"""Fusion of list operations: what several of them do to the same lists becomes one pass over each tuple of tensors.

Two lists are either the same tensors in the same order or share no memory (the recorder sees to that), so lists behave
like variables: an operation joins an earlier one over the same shapes when nothing between them touches what it uses.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_webgpu.ir.graph import Expr, walk
from torch_webgpu.ir.ops import ops
from torch_webgpu.wgsl.horizontal import Body, Column, Layout, Number, build_horizontal, groups_of
from torch_webgpu.wgsl.kernel import Kernel

MAX_TUPLES = 16
"""Tuples in one dispatch: beyond, what is saved in dispatches is lost in finding a workgroup's tuple."""
ALONE_NUMEL = 1 << 20
"""A tensor of so many elements has a dispatch of its own, whose kernel need not look for the tuple."""
MAX_NUMBERS = 64

_ids = itertools.count()


class Argument(NamedTuple):
    """A list argument: its dtype's name, and what a tuple has of it (see ``wgsl.horizontal.Column``)."""

    dtype: str
    layout: Layout


@dataclass(frozen=True, eq=False)
class ListOperation:
    """One operation over lists, without the lists: ``roots[j]`` is stored into argument ``targets[j]``.

    Leaves of the expressions: ``load k`` of argument ``k``, ``param k`` of number ``k``.
    """

    name: str
    roots: tuple[Expr, ...]
    targets: tuple[int, ...]
    args: tuple[Argument, ...]
    numbers: tuple[Number, ...]
    id: int = field(default_factory=lambda: next(_ids))


class Call(NamedTuple):
    """A recorded operation: the number of the list behind each argument, and of the shapes it iterates over."""

    op: ListOperation
    lists: tuple[int, ...]
    domain: int


class Limits(NamedTuple):
    """``buffers`` per dispatch; ``window``: how many operations may become one."""

    buffers: int
    window: int


@dataclass(frozen=True)
class Chunk:
    """One dispatch: ``tuples`` are positions in the lists, ``sizes`` the packed parameters that follow from sizes."""

    kernel: Kernel
    tuples: tuple[int, ...]
    sizes: bytes
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Group:
    """Operations that became one: the list behind each column, where each number comes from (call, index)."""

    body: Body
    lists: tuple[int, ...]
    numbers: tuple[tuple[int, int], ...]
    domain: int
    calls: tuple[int, ...]

    @property
    def written(self) -> list[int]:
        return [self.lists[k] for k in self.body.targets]

    def chunks(self, numels: Sequence[int], limit: int) -> tuple[Chunk, ...]:
        """The dispatches for tuples of these sizes."""
        shared = sum(column.layout == "shared" for column in self.body.columns)
        most = max(1, min(MAX_TUPLES, (limit - shared) // max(1, len(self.body.columns) - shared)))
        alone = [(k,) for k, n in enumerate(numels) if n >= ALONE_NUMEL]
        small = [k for k, n in enumerate(numels) if n < ALONE_NUMEL]
        together = [tuple(small[first : first + most]) for first in range(0, len(small), most)]
        return tuple(self._chunk(tuples, [numels[k] for k in tuples]) for tuples in (*alone, *together))

    def _chunk(self, tuples: tuple[int, ...], numels: Sequence[int]) -> Chunk:
        starts, grid = groups_of(numels)
        sizes = (*numels, *starts[1:])
        return Chunk(build_horizontal(self.body, len(tuples)), tuples, struct.pack(f"<{len(sizes)}I", *sizes), grid)


class _Pass:
    """A group under construction."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.calls: list[int] = []
        self.columns: dict[tuple[int, Argument], int] = {}
        self.values: dict[int, Expr] = {}  # what a written list holds by now
        self.numbers: list[tuple[int, int]] = []
        self.kinds: list[Number] = []
        self.reads: set[int] = set()
        self.writes: set[int] = set()

    def conflicts(self, reads: set[int], writes: set[int]) -> bool:
        return bool(reads & self.writes or writes & (self.reads | self.writes))

    def room(self, call: Call, limits: Limits) -> bool:
        new = {(n, a) for n, a in zip(call.lists, call.op.args, strict=True)} - self.columns.keys()
        return (
            len(self.calls) < max(1, limits.window)
            and len(self.columns) + len(new) <= limits.buffers
            and len(self.numbers) + len(call.op.numbers) <= MAX_NUMBERS
        )

    def add(self, index: int, call: Call) -> None:
        op = call.op
        self.calls.append(index)
        first = len(self.numbers)
        self.numbers += [(index, k) for k in range(len(op.numbers))]
        self.kinds += op.numbers
        inner: dict[Expr, Expr] = {}
        for e in walk(op.roots):
            if e.op == "load":
                inner[e] = self.load(call.lists[e.args[0]], op.args[e.args[0]], e.dtype)
            elif e.op == "param":
                inner[e] = ops.param(first + e.args[0], e.dtype)
            elif any(isinstance(a, Expr) for a in e.args):
                inner[e] = Expr(e.op, tuple(inner[a] if isinstance(a, Expr) else a for a in e.args), e.dtype)
            else:
                inner[e] = e
        for root, target in zip(op.roots, op.targets, strict=True):
            argument = op.args[target]
            self.columns.setdefault((call.lists[target], argument), len(self.columns))
            self.values[call.lists[target]] = ops.to_dtype(inner[root], argument.dtype)
        reads, writes = effects(call)
        self.reads |= reads
        self.writes |= writes

    def load(self, number: int, argument: Argument, dtype: str) -> Expr:
        if number in self.values:
            return self.values[number]
        return ops.load(self.columns.setdefault((number, argument), len(self.columns)), dtype)

    def group(self, calls: Sequence[Call], dead: frozenset[int], offsets: frozenset[int]) -> Group | None:
        """The finished group without what nobody reads any more; None if nothing is left."""
        kept = {number: root for number, root in self.values.items() if number not in dead}
        if not kept:
            return None
        roots = tuple(kept.values())
        leaves = [e for e in walk(roots) if e.op in ("load", "param")]
        loaded = {e.args[0] for e in leaves if e.op == "load"}
        order = [(n, a) for (n, a), k in self.columns.items() if k in loaded or (n in kept and a.layout == "elements")]
        place = {self.columns[item]: k for k, item in enumerate(order)}
        numbers = sorted({e.args[0] for e in leaves if e.op == "param"})
        renamed = rename(roots, place, {k: j for j, k in enumerate(numbers)})
        columns = tuple(Column(a.dtype, a.layout, a.layout == "elements" and n in kept, n in offsets) for n, a in order)
        targets = tuple(next(k for k, (n, a) in enumerate(order) if n == target) for target in kept)
        name = calls[self.calls[0]].op.name + (f"+{len(self.calls) - 1} more" if len(self.calls) > 1 else "")
        body = Body(name, renamed, targets, columns, tuple(self.kinds[k] for k in numbers))
        sources = tuple(self.numbers[k] for k in numbers)
        return Group(body, tuple(n for n, _ in order), sources, self.domain, tuple(self.calls))


def effects(call: Call) -> tuple[set[int], set[int]]:
    """The lists a call reads and writes. What is written counts as written, whether it is read before or not."""
    loaded = {e.args[0] for e in walk(call.op.roots) if e.op == "load"}
    return {call.lists[k] for k in loaded}, {call.lists[k] for k in call.op.targets}


def rename(roots: Sequence[Expr], columns: dict[int, int], numbers: dict[int, int]) -> tuple[Expr, ...]:
    inner: dict[Expr, Expr] = {}
    for e in walk(roots):
        if e.op == "load":
            inner[e] = ops.load(columns[e.args[0]], e.dtype)
        elif e.op == "param":
            inner[e] = ops.param(numbers[e.args[0]], e.dtype)
        else:
            inner[e] = Expr(e.op, tuple(inner[a] if isinstance(a, Expr) else a for a in e.args), e.dtype)
    return tuple(inner[root] for root in roots)


def fuse_lists(
    calls: Sequence[Call], dead: frozenset[int], offsets: frozenset[int], limits: Limits
) -> tuple[Group, ...]:
    """The passes that do what ``calls`` do one after the other.

    ``dead``: lists that nobody can read after the last call; ``offsets``: those with tensors that start inside their
    buffers.
    """
    passes: list[_Pass] = []
    for index, call in enumerate(calls):
        place = _place(passes, call, limits)
        if place is None:
            passes.append(_Pass(call.domain))
            place = passes[-1]
        place.add(index, call)
    # Backwards, so that a list is dead for a pass, too, when nothing after it reads it.
    groups: list[Group] = []
    read_later: set[int] = set()
    for p in reversed(passes):
        group = p.group(calls, frozenset(dead - read_later), offsets)
        if group is not None:
            groups.append(group)
            read_later |= set(group.lists)
    return tuple(reversed(groups))


def _place(passes: list[_Pass], call: Call, limits: Limits) -> _Pass | None:
    """The pass that ``call`` can join; one that stands before passes it has nothing to do with may move behind them."""
    reads, writes = effects(call)
    for k in range(len(passes) - 1, -1, -1):
        candidate = passes[k]
        if candidate.domain != call.domain or not candidate.room(call, limits):
            if candidate.domain == call.domain:
                return None
            continue
        between = passes[k + 1 :]
        if not any(p.conflicts(reads, writes) for p in between):
            return candidate
        if not any(p.conflicts(candidate.reads, candidate.writes) for p in between):
            passes.append(passes.pop(k))
            return candidate
        return None
    return None
