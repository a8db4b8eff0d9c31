"""Programs: a plan's commands with everything worked out that its next recording will share.

The first time a plan is run, :mod:`.flush` lowers its nodes one by one, and knows whose fault an error is. When the
plan comes back, its program does the same with look-ups by number: which allocation lies where in the recording, which
buffers a dispatch binds, when memory is taken and given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_webgpu.ir.graph import Node
from torch_webgpu.lower.fuse import Step
from torch_webgpu.lower.lower import lower
from torch_webgpu.runtime.commands import Clear, Command, Dispatch
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.launch import Launch

from .tensor import FIRST_BYTE, OFFSET_MASK

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Buffer, Device

    from .lane import Recording
    from .tensor import Allocation


def alias_pattern(node: Node) -> tuple[int, ...]:
    """For each argument the first one that lies in the same allocation."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(a), k) for k, a in enumerate(node.allocations)])


def fused_node(step: Step, recorded: Sequence[Node]) -> Node:
    """The node that a step of a plan stands for, over this time's allocations, offsets and scalars."""
    if step.unchanged:
        return recorded[step.nodes[0]]
    allocations = tuple([recorded[n].allocations[k] for n, k in step.sources])
    offsets = tuple([recorded[n].offsets[k] for n, k in step.sources])
    return Node(step.op, allocations, offsets, tuple([p for n in step.scalars for p in recorded[n].params]))


class _Dispatch(NamedTuple):
    """A dispatch over buffers by number. ``pack``: None where its parameters are always the same."""

    kernel: Kernel
    buffers: Callable[[list[Any]], tuple[Any, ...]]
    fixed: bytes
    pack: Callable[[Sequence[int], Sequence[int | float]], bytes] | None
    grid: tuple[int, int, int]


class _Stage(NamedTuple):
    """One step: what it needs memory for, what it runs, whose memory nobody needs afterwards.

    ``places``: of each argument the place and the shift from bytes to elements. ``scalars``: whose are its own.
    """

    places: tuple[tuple[int, int], ...]
    scalars: tuple[int, ...]
    first_used: tuple[int, ...]
    temporaries: tuple[tuple[int, int], ...]  # number and size in bytes
    cleared: tuple[tuple[int, int], ...]
    dispatches: tuple[_Dispatch, ...]
    last_used: tuple[int, ...]


class Undo:
    """What a program did to allocations before its commands were submitted, to be taken back if they never are."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Whether it was allocated or released, for which allocation if not as a temporary.
        self.done: list[tuple[bool, Allocation | None, Buffer]] = []

    def run(self) -> None:
        for allocated, allocation, buffer in reversed(self.done):
            (self._device.release if allocated else self._device.retake)(buffer)
            if allocation is not None:
                allocation.buffer = None if allocated else buffer


class Program:
    """The commands of a plan's ``steps`` for one device."""

    def __init__(self, steps: Sequence[Step], recording: Recording, device: Device) -> None:
        nodes = recording.nodes()
        owners, places, rows = recording.owners, list(_places(recording)), []
        for step in steps:
            sources = [(step.nodes[0], k) for k in range(len(step.op.args))] if step.unchanged else step.sources
            rows.append([places[n][k] for n, k in sources])
        self._device = device
        self._temporaries = len(recording.allocations)
        self._extra = 0
        used = [[owners[place] for place in row] for row in rows]
        first = {number: s for s, row in reversed(list(enumerate(used))) for number in row}
        last = {number: s for s, row in enumerate(used) for number in row}
        self._used = tuple(first)
        self._starts: list[int] = []  # of the places in their allocations, the last time
        self._packed: dict[tuple[int, int], bytes] = {}  # the parameters that depend on nothing else
        self._stages = [
            self._stage(
                step,
                row,
                owned,
                fused_node(step, nodes),
                tuple(dict.fromkeys(n for n in owned if first[n] == s)),
                tuple(dict.fromkeys(n for n in owned if last[n] == s and not recording.alive[n])),
            )
            for s, (step, row, owned) in enumerate(zip(steps, rows, used, strict=True))
        ]

    def _stage(
        self,
        step: Step,
        row: Sequence[int],
        owned: Sequence[int],
        node: Node,
        first: tuple[int, ...],
        last: tuple[int, ...],
    ) -> _Stage:
        lowered = lower(node.op, alias_pattern(node), self._device.index, self._device.caps)
        base = self._temporaries
        self._extra = max(self._extra, len(lowered.temporaries))
        known = [*owned, *range(base, base + len(lowered.temporaries)), -1]  # the error buffer is the last of the list
        return _Stage(
            tuple(zip(row, step.op.shifts, strict=True)),
            (step.nodes[0],) if step.unchanged else step.scalars,
            first,
            tuple([(base + t, size) for t, size in enumerate(lowered.temporaries)]),
            tuple([(base + t, lowered.temporaries[t]) for t in lowered.cleared]),
            tuple([_dispatch(launch, [known[k] for k in launch.bindings]) for launch in lowered.launches]),
            last,
        )

    def is_poisoned(self, recording: Recording) -> bool:
        """Whether an argument's value is an error."""
        allocations = recording.allocations
        return any([allocations[n].error is not None for n in self._used])  # noqa: C419  generators are slower

    def commands(self, recording: Recording, undo: Undo) -> Iterator[Command]:
        """The commands for this time's recording, taking memory as they need it."""
        allocations, entries, device = recording.allocations, recording.entries, self._device
        buffers: list[Any] = [a.buffer for a in allocations]
        buffers += [None] * self._extra
        buffers.append(device.error_buffer)
        starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in recording.places]
        if starts != self._starts:
            self._starts, self._packed = starts, {}
        packed_before = self._packed
        allocate, release, done = device.allocate, device.release, undo.done.append
        for s, (places, scalars, first_used, temporaries, cleared, dispatches, last_used) in enumerate(self._stages):
            for number in first_used:
                if buffers[number] is None:
                    allocation = allocations[number]
                    buffers[number] = allocation.buffer = buffer = allocate(allocation.size_bytes, False)
                    done((True, allocation, buffer))
            for number, size in temporaries:
                buffers[number] = buffer = allocate(size, False)
                done((True, None, buffer))
            for number, size in cleared:
                yield Clear(buffers[number], 0, size)
            params = entries[scalars[0]][2] if len(scalars) == 1 else [p for n in scalars for p in entries[n][2]]
            offsets = None
            for d, (kernel, bound, packed, pack, grid) in enumerate(dispatches):
                if pack is not None:
                    known = None if params else packed_before.get((s, d))
                    if known is None:
                        if offsets is None:
                            offsets = [starts[place] >> shift for place, shift in places]
                        known = pack(offsets, params)
                        if not params:
                            packed_before[s, d] = known
                    packed = known
                yield Dispatch(kernel, bound(buffers), packed, grid)
            for number, _ in temporaries:
                release(buffers[number])
                done((False, None, buffers[number]))
            for number in last_used:
                release(buffers[number])
                done((False, allocations[number], buffers[number]))
                allocations[number].buffer = None


def _places(recording: Recording) -> Iterator[list[int]]:
    """The places of each operation's arguments."""
    numbers = iter(recording.numbered)
    for op in recording.ops:
        yield [next(numbers) for _ in op.args]


def _dispatch(launch: Launch, numbers: list[int]) -> _Dispatch:
    pack = launch.pack if launch.fixed is None else None
    return _Dispatch(launch.kernel, _picker(numbers), launch.fixed or b"", pack, launch.grid)


def _picker(numbers: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that picks these items of a list, as a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda known: tuple([known[n] for n in numbers])
