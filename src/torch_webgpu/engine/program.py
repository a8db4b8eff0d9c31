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

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Buffer, Device

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
    return Node(step.op, allocations, *_values(step, recorded))


def _values(step: Step, recorded: Sequence[Node]) -> tuple[tuple[int, ...], tuple[int | float, ...]]:
    offsets = tuple([recorded[n].offsets[k] for n, k in step.sources])
    return offsets, tuple([p for n in step.scalars for p in recorded[n].params])


class _Dispatch(NamedTuple):
    """A dispatch over buffers by number."""

    kernel: Kernel
    buffers: Callable[[list[Any]], tuple[Any, ...]]
    fixed: bytes | None
    pack: Callable[[Sequence[int], Sequence[int | float]], bytes]
    grid: tuple[int, int, int]


class _Stage(NamedTuple):
    """One step: what it needs memory for, what it runs, whose memory nobody needs afterwards."""

    step: Step
    single: int  # the one recorded node it stands for, or -1
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

    def __init__(self, steps: Sequence[Step], recorded: Sequence[Node], device: Device) -> None:
        self._where: list[tuple[int, int]] = []  # for each allocation a node and an argument that name it
        numbers: dict[int, int] = {}
        rows = []
        for step in steps:
            sources = [(step.nodes[0], k) for k in range(len(step.op.args))] if step.unchanged else step.sources
            row = []
            for n, k in sources:
                allocation = recorded[n].allocations[k]
                number = numbers.setdefault(id(allocation), len(self._where))
                if number == len(self._where):
                    self._where.append((n, k))
                row.append(number)
            rows.append(row)
        self._temporaries = len(self._where)
        self._extra = 0
        first = {number: s for s, row in reversed(list(enumerate(rows))) for number in row}
        last = {number: s for s, row in enumerate(rows) for number in row}
        dead = {n for n, (i, k) in enumerate(self._where) if not recorded[i].allocations[k].alive}
        self._stages = [
            self._stage(
                step,
                row,
                fused_node(step, recorded),
                device,
                tuple(dict.fromkeys(n for n in row if first[n] == s)),
                tuple(dict.fromkeys(n for n in row if last[n] == s and n in dead)),
            )
            for s, (step, row) in enumerate(zip(steps, rows, strict=True))
        ]

    def _stage(
        self, step: Step, row: list[int], node: Node, device: Device, first: tuple[int, ...], last: tuple[int, ...]
    ) -> _Stage:
        lowered = lower(node.op, alias_pattern(node), device.index, device.caps)
        base = self._temporaries
        self._extra = max(self._extra, len(lowered.temporaries))
        known = [*row, *range(base, base + len(lowered.temporaries)), -1]  # the error buffer is the last of the list
        return _Stage(
            step,
            step.nodes[0] if step.unchanged else -1,
            first,
            tuple([(base + t, size) for t, size in enumerate(lowered.temporaries)]),
            tuple([(base + t, lowered.temporaries[t]) for t in lowered.cleared]),
            tuple([_dispatch(launch, [known[k] for k in launch.bindings]) for launch in lowered.launches]),
            last,
        )

    def is_poisoned(self, recorded: Sequence[Node]) -> bool:
        """Whether an argument's value is an error."""
        return any(recorded[n].allocations[k].error is not None for n, k in self._where)

    def commands(self, recorded: Sequence[Node], device: Device, undo: Undo) -> Iterator[Command]:
        """The commands for this time's recording, taking memory as they need it."""
        allocations = [recorded[n].allocations[k] for n, k in self._where]
        buffers = [a.buffer for a in allocations]
        buffers += [None] * self._extra
        buffers.append(device.error_buffer)
        allocate, release, done = device.allocate, device.release, undo.done.append
        for step, single, first_used, temporaries, cleared, dispatches, last_used in self._stages:
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
            values = recorded[single][2:] if single >= 0 else _values(step, recorded)
            for kernel, bound, fixed, pack, grid in dispatches:
                yield Dispatch(kernel, bound(buffers), fixed if fixed is not None else pack(*values), grid)
            for number, _ in temporaries:
                release(buffers[number])
                done((False, None, buffers[number]))
            for number in last_used:
                release(buffers[number])
                done((False, allocations[number], buffers[number]))
                allocations[number].buffer = None


def _dispatch(launch: Launch, numbers: list[int]) -> _Dispatch:
    return _Dispatch(launch.kernel, _picker(numbers), launch.fixed, launch.pack, launch.grid)


def _picker(numbers: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that picks these items of a list, as a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda known: tuple([known[n] for n in numbers])
