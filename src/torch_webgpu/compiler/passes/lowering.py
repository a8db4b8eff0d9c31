"""From fused operations to a plan: their kernels' dispatches in order, over numbered buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from torch_webgpu.compiler.fuse.nodes import FusedNode, RecordedNode, Use
from torch_webgpu.compiler.lower.lower import lower
from torch_webgpu.ir.operation import ForEach, Operation
from torch_webgpu.plan import (
    ERROR_FLAG_BYTES,
    Buffer,
    Clear,
    Offset,
    Plan,
    Scalar,
    Step,
    Word,
    bits,
    rebound,
    renumbered,
    touched,
)
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Kernel
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, Source


def arguments(node: FusedNode, recorded: Sequence[RecordedNode]) -> list[Use]:
    """Where each argument of a fused node lies."""
    return [recorded[n].uses[k] for n, k in node.sources]


Members = Mapping[int, Sequence[Use]]
"""Where the tensors of lists lie, by the lists' places: nowhere, for a list that nothing uses."""
NOWHERE = -1
"""The place of a tensor that nobody asks for the start of, since it is its allocation's."""


def tensors_of(uses: Iterable[Use], members: Members) -> list[Use]:
    """Where each tensor of these arguments lies, those of lists one by one."""
    return [tensor for use in uses for tensor in members.get(use.place, (use,))]


def alias_pattern(owners: Sequence[object]) -> tuple[int, ...]:
    """For each argument the first one with the same owner."""
    first: dict[object, int] = {}
    return tuple([first.setdefault(owner, k) for k, owner in enumerate(owners)])


ScalarWord = Word | float
"""A scalar of a recorded operation: a number that will always be the same, or where it comes from."""


def scalar_words(widths: Sequence[int]) -> list[list[ScalarWord]]:
    """Scalars that each run is given anew: so many for each recorded operation."""
    numbers = count()
    return [[Scalar(next(numbers)) for _ in range(width)] for width in widths]


class Span(NamedTuple):
    """What an operation has become: the plan's steps from ``start`` to before ``stop``."""

    op: Operation
    lowered: Lowered
    start: int
    stop: int


def make_plan(
    fused: Sequence[FusedNode],
    recorded: Sequence[RecordedNode],
    buffers: Sequence[Buffer],
    scalars: Sequence[Sequence[ScalarWord]],
    target: Target,
    members: Members,
) -> tuple[Plan, tuple[Span, ...]]:
    """The plan of ``fused`` nodes over what was recorded, and what each of them has become.

    ``buffers``: of each allocation, those of lists' tensors included. ``scalars``: of each recorded operation. The
    plan's tensors are the recorded places but for lists, then those of lists' tensors. After the allocations' buffers
    come temporaries, the last buffer is the device's error flags.
    """
    places = [use for node in recorded for use in node.uses if use.place not in members]
    places += [use for uses in members.values() for use in uses if use.place != NOWHERE]
    owners = {use.place: use.allocation for use in places}
    found = [lower(node.op, aliases(node, recorded), target) for node in fused]
    planned = list(buffers)
    errors = len(buffers) + sum(len(lowered.temporaries) for lowered in found)
    kernels: dict[Kernel, int] = {}
    steps: list[Step | Clear] = []
    spans: list[Span] = []
    for node, lowered in zip(fused, found, strict=True):
        start = len(steps)
        uses, shifts = tensors_of(arguments(node, recorded), members), node.op.shifts
        if isinstance(node.op.body, ForEach):
            shifts = tuple([s for s, n in zip(shifts, node.op.body.counts, strict=True) for _ in range(n)])
        base = len(planned)
        planned += [Buffer(size, "temporary") for size in lowered.temporaries]
        known = [*(use.allocation for use in uses), *range(base, len(planned))]
        numbers = [number for n in node.scalars for number in scalars[n]]
        steps += [Clear(base + t, lowered.temporaries[t]) for t in lowered.cleared]
        for launch in lowered.launches:
            kernel = kernels.setdefault(launch.kernel, len(kernels))
            bindings = tuple([(errors if k == ERRORS else known[k], 0) for k in launch.bindings])
            steps.append(Step(kernel, bindings, _words(launch, uses, shifts, numbers), launch.grid))
        spans.append(Span(node.op, lowered, start, len(steps)))
    planned.append(Buffer(ERROR_FLAG_BYTES, "errors"))
    lie_in = tuple([owners[place] for place in range(len(owners))])
    return Plan(tuple(planned), tuple(kernels), tuple(steps), lie_in), tuple(spans)


def aliases(node: FusedNode, recorded: Sequence[RecordedNode]) -> tuple[int, ...]:
    """For each argument the first one in its allocation, or, for operations over lists, that is it."""
    lists = isinstance(node.op.body, ForEach)
    return alias_pattern([use.place if lists else use.allocation for use in arguments(node, recorded)])


def _words(
    launch: Launch, uses: Sequence[Use], shifts: Sequence[int], numbers: Sequence[ScalarWord]
) -> tuple[Word, ...]:
    words: list[Word] = []
    for value, param in zip(launch.values, launch.kernel.params):
        if isinstance(value, Source) and value.kind == "offset":
            words.append(Offset(uses[value.index].place, shifts[value.index]))
            continue
        number = numbers[value.index] if isinstance(value, Source) else value
        words.append(bits(number, param.type) if isinstance(number, (int, float)) else number)
    return tuple(words)


def arranged(plan: Plan, brought: Sequence[int], starts: Sequence[tuple[int, int]]) -> tuple[Plan, dict[int, int]]:
    """The plan with the buffers ``brought`` first, then its temporaries, and without those that nothing touches.

    ``starts``: of each of its tensors, see :func:`restarted`. Also gives the new number of each old buffer.
    """
    last = len(plan.buffers) - 1
    rest = [b for b in sorted(plan.lifetimes) if b not in brought and b != last]
    order = [*brought, *rest, last]
    numbers = {old: new for new, old in enumerate(order)}
    steps = tuple([renumbered(step, numbers, starts) for step in plan.steps])
    return replace(plan, buffers=tuple([plan.buffers[b] for b in order]), steps=steps), numbers


def sharing_temporaries(plan: Plan, brought: int, capacity: Callable[[int], int]) -> Plan:
    """The plan with one temporary for several that are never needed at the same time.

    ``brought``: how many buffers come before the temporaries, of which the error flags are the last. ``capacity``: the
    size of the memory that a buffer of some size is given; those share that are given memory of one size.
    """
    last = len(plan.buffers) - 1
    numbers = {b: b for b in range(brought)}
    buffers, free = list(plan.buffers[:brought]), defaultdict[int, list[int]](list)
    for number, step in enumerate(plan.steps):
        ended = []
        for b in dict.fromkeys(touched(step)):
            if not brought <= b < last:
                continue
            start, stop = plan.lifetimes[b]
            unused = free[capacity(plan.buffers[b].size_bytes)]
            if start == number and unused:
                numbers[b] = unused.pop()
                buffers[numbers[b]] = max(buffers[numbers[b]], plan.buffers[b], key=lambda buffer: buffer.size_bytes)
            elif start == number:
                numbers[b] = len(buffers)
                buffers.append(plan.buffers[b])
            if stop == number:
                ended.append((unused, numbers[b]))
        for unused, shared in ended:
            unused.append(shared)
    numbers[last] = len(buffers)
    steps = tuple([rebound(step, numbers) for step in plan.steps])
    return replace(plan, buffers=(*buffers, plan.buffers[last]), steps=steps)
