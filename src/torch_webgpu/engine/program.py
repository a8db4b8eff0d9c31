"""Programs: a plan's commands with everything worked out that its next recording will share.

The first time a plan is run, :mod:`.flush` lowers its nodes one by one, and knows whose fault an error is. When the
plan comes back, its program does the same with look-ups by number: which allocation lies where in the recording, which
buffers a dispatch binds, when memory is taken and given back. When the pool gives it buffers that it had before, as it
does in a loop, only the parameters that changed are written, and the commands are encoded as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    from torch_webgpu.runtime.buffers import Exchange
    from torch_webgpu.runtime.runtime import Buffer, Device

    from .lane import Entry, Recording

Pack = Callable[[Sequence[int], Sequence[int | float]], bytes]
"""Makes a dispatch's parameters of offsets and scalars."""


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
    pack: Pack | None
    grid: tuple[int, int, int]


class _Stage(NamedTuple):
    """One step: what it runs, and what its parameters come from.

    ``places``: of each argument the place and the shift from bytes to elements. ``scalars``: whose are its own.
    ``cleared``: numbers and sizes in bytes. ``packs``: of its dispatches whose parameters change, the numbers among all
    commands.
    """

    places: tuple[tuple[int, int], ...]
    scalars: tuple[int, ...]
    cleared: tuple[tuple[int, int], ...]
    dispatches: tuple[_Dispatch, ...]
    packs: tuple[tuple[int, Pack], ...]

    def arguments(self, entries: Sequence[Entry], starts: Sequence[int]) -> tuple[list[int], Sequence[int | float]]:
        """What its parameters are made of: offsets in elements, and scalars."""
        numbers = self.scalars
        scalars = entries[numbers[0]][2] if len(numbers) == 1 else [p for n in numbers for p in entries[n][2]]
        return [starts[place] >> shift for place, shift in self.places], scalars


class Program:
    """The commands of a plan's ``steps`` for one device.

    Buffers have numbers: those of the recording's allocations, then each step's temporaries, then the error flags'.
    """

    def __init__(self, steps: Sequence[Step], recording: Recording, device: Device) -> None:
        nodes = recording.nodes()
        owners, places, rows = recording.owners, list(_places(recording)), []
        for step in steps:
            sources = [(step.nodes[0], k) for k in range(len(step.op.args))] if step.unchanged else step.sources
            rows.append([places[n][k] for n, k in sources])
        self._device = device
        self._allocations = len(recording.allocations)
        self._temporaries: list[int] = []  # their sizes in bytes
        used = [[owners[place] for place in row] for row in rows]
        first = {number: s for s, row in reversed(list(enumerate(used))) for number in row}
        last = {number: s for s, row in enumerate(used) for number in row}
        self._used = tuple(first)
        self._kept = tuple([n for n in first if recording.alive[n]])
        self._lost = tuple([n for n in first if not recording.alive[n]])
        self._takes: list[tuple[int, bool]] = []  # the numbers whose memory is needed, or not any more
        self._stages: list[_Stage] = []
        commands = 0
        for s, (step, row, owned) in enumerate(zip(steps, rows, used, strict=True)):
            self._takes += [(n, True) for n in dict.fromkeys(owned) if first[n] == s]
            stage = self._stage(step, row, owned, fused_node(step, nodes), commands)
            self._takes += [(n, False) for n in dict.fromkeys(owned) if last[n] == s and not recording.alive[n]]
            self._stages.append(stage)
            commands += len(stage.cleared) + len(stage.dispatches)
        self._scalar_stages = [stage for stage in self._stages if stage.scalars and stage.packs]
        self._sizes: list[int] = []  # of the allocations, the last time
        self._memory: list[Exchange] = []  # for allocations of these sizes

    def _stage(self, step: Step, row: Sequence[int], owned: Sequence[int], node: Node, commands: int) -> _Stage:
        lowered = lower(node.op, alias_pattern(node), self._device.index, self._device.caps)
        base = self._allocations + len(self._temporaries)
        temporaries = range(base, base + len(lowered.temporaries))
        self._temporaries += lowered.temporaries
        self._takes += [(n, True) for n in temporaries]
        self._takes += [(n, False) for n in temporaries]
        known = [*owned, *temporaries, -1]  # the error buffer is the last of the list
        dispatches = tuple([_dispatch(launch, [known[k] for k in launch.bindings]) for launch in lowered.launches])
        commands += len(lowered.cleared)
        scalars = (step.nodes[0],) if step.unchanged else step.scalars
        return _Stage(
            tuple(zip(row, step.op.shifts, strict=True)),
            scalars if node.params else (),
            tuple([(base + t, lowered.temporaries[t]) for t in lowered.cleared]),
            dispatches,
            tuple([(k, dispatch.pack) for k, dispatch in enumerate(dispatches, commands) if dispatch.pack is not None]),
        )

    def is_poisoned(self, recording: Recording) -> bool:
        """Whether an argument's value is an error."""
        allocations = recording.allocations
        return any([allocations[n].error is not None for n in self._used])  # noqa: C419  generators are slower

    def run(self, recording: Recording, last: Callable[[], Iterable[Command]] | None) -> None:
        """Submits this time's recording, and after it what ``last`` gives when everything else is encoded.

        On an exception nothing has happened, unless the device says that it was submitted.
        """
        allocations, device = recording.allocations, self._device
        submitted = device.submissions
        before: list[Buffer | None] = [a.buffer for a in allocations]
        sizes = [a.size_bytes for a in allocations]
        if sizes != self._sizes:
            self._sizes, self._memory = sizes, self._exchanges(sizes)
        buffers = [*before, *[None] * len(self._temporaries), device.error_buffer]
        device.exchange(self._memory, buffers)
        try:
            for n in self._kept:
                allocations[n].buffer = buffers[n]
            for n in self._lost:
                allocations[n].buffer = None
            self._submit(recording, buffers, last)
        except BaseException:
            if device.submissions == submitted:
                device.undo_exchange(self._memory, before, buffers)
                for allocation, buffer in zip(allocations, before):
                    allocation.buffer = buffer
            raise

    def _submit(
        self, recording: Recording, buffers: list[Buffer | None], last: Callable[[], Iterable[Command]] | None
    ) -> None:
        entries, device = recording.entries, self._device
        starts = [(address & OFFSET_MASK) - FIRST_BYTE for address in recording.places]
        key = self, tuple(buffers)
        prepared = device.prepared(key)
        if prepared is None:
            commands = self._commands(entries, buffers, starts)
            prepared = device.prepare_again(key, commands)
            if prepared is None:
                device.submit(commands if last is None else (*commands, *last()))
                return
        else:
            params: Any = prepared.params
            made_for, prepared.made_for = prepared.made_for, None  # until all are written
            for stage in self._scalar_stages if starts == made_for else self._stages:
                offsets, scalars = stage.arguments(entries, starts)
                for k, pack in stage.packs:
                    params[k][:] = pack(offsets, scalars)
        prepared.made_for = starts
        device.submit_prepared(prepared, last)

    def _exchanges(self, sizes: Sequence[int]) -> list[Exchange]:
        """How memory is taken and given back for allocations of these sizes."""
        capacities = [self._device.capacity(size) for size in (*sizes, *self._temporaries)]
        return [(n, capacities[n] if taken else 0) for n, taken in self._takes]

    def _commands(self, entries: Sequence[Entry], buffers: list[Any], starts: Sequence[int]) -> list[Command]:
        commands: list[Command] = []
        for stage in self._stages:
            commands += [Clear(buffers[number], 0, size) for number, size in stage.cleared]
            offsets, scalars = stage.arguments(entries, starts)
            for kernel, bound, fixed, pack, grid in stage.dispatches:
                params = fixed if pack is None else pack(offsets, scalars)
                commands.append(Dispatch(kernel, bound(buffers), params, grid))
        return commands


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
