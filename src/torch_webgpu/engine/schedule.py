"""Schedules: what a recording is fused to, found again, with its programs, when the same recording comes back.

Its key (``Recording.key``) is its operations, which of their arguments start at the same place, and which allocations
are still alive. Offsets and scalars are not part of it: they are parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from torch_webgpu.compiler.fuse.fuser import FusedNode, Limits, RecordedNode, Use, fuse
from torch_webgpu.compiler.fuse.patterns import BUILT_IN, Matcher, Pattern
from torch_webgpu.compiler.passes.lowering import NOWHERE, arguments, make_plan, scalar_words, tensors_of
from torch_webgpu.config import config, is_printed, print_stage
from torch_webgpu.plan import Buffer, Role, check

from .program import Program

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .lane import Recording

SCHEDULE_CACHE_SIZE = 1024
EVICTED_PART = 16
"""What part of a full cache makes room."""


@dataclass(eq=False)
class Schedule:
    """The steps of a recording of ``recorded`` nodes, and the programs it has become, by device.

    ``lists``: those of the recording's lists that must lie in memory.
    """

    steps: tuple[FusedNode, ...]
    recorded: int
    lists: tuple[int, ...] = ()
    patterns: tuple[tuple[str, int], ...] = ()  # named chains and how often each occurs
    programs: dict[int, Program] = field(default_factory=dict)
    last_use: int = 0  # on the scheduler's clock

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Operations that joined another's kernel, that have one of their own, that are not run at all."""
        alone = sum(step.unchanged for step in self.steps)
        run = sum(len(step.nodes) for step in self.steps)
        return run - alone, alone, self.recorded - run

    def program(self, recording: Recording, device: Device) -> Program:
        """Its program; made from this recording if it is the first."""
        found = self.programs.get(device.index)
        if found is None:
            found = self.programs[device.index] = self.placement(recording).program(self.steps, device)
            if is_printed("plan"):
                print_stage("plan", f"of {self.recorded} operations on webgpu:{device.index}", str(found.plan))
        return found

    def placement(self, recording: Recording) -> Placement:
        """Where what a recording of these steps uses lies."""
        return Placement(recording, self.lists)


class Placement:
    """Where the arguments of a recording's operations lie, by number: what plans are made of.

    ``lists``: those of its lists that lie in memory. ``memory``: its allocations, then those of these lists' tensors.
    """

    def __init__(self, recording: Recording, lists: Sequence[int]) -> None:
        self.recording = recording
        self.nodes, self.members = nodes_of(recording), members_of(recording, lists)
        self.memory, self.starts = recording.memory(lists), recording.starts(lists)

    def read(self, step: FusedNode) -> list[int]:
        """The numbers of the allocations that a step reads."""
        return self._numbers(arguments(step, self.nodes)[: step.op.n_inputs])

    def written(self, step: FusedNode) -> list[int]:
        """The numbers of the allocations that a step writes."""
        return self._numbers(arguments(step, self.nodes)[step.op.n_inputs :])

    def _numbers(self, uses: Sequence[Use]) -> list[int]:
        return [use.allocation for use in tensors_of(uses, self.members)]

    def readable(self) -> set[int]:
        """The numbers of the allocations that can be read when the recording has run."""
        alive, singles, first = self.recording.alive, len(self.recording.allocations), self.recording.first_list
        kept = {number for number in range(singles) if alive[number]}
        for n in range(len(self.recording.lists)):
            if alive[singles + n]:
                kept |= {use.allocation for use in self.members[first + n] if use.allocation >= singles}
        return kept

    def program(self, steps: Sequence[FusedNode], device: Device, later: Sequence[FusedNode] = ()) -> Program:
        """A program of these steps, which leaves what the ``later`` ones use."""
        widths, kept = [len(row) for row in self.recording.numbers], self.readable()
        buffers = self._buffers(steps, kept)
        plan, spans = make_plan(steps, self.nodes, buffers, scalar_words(widths), device.target, self.members)
        if "verify" in config().debug:
            check(plan)
        kept.update(*[(*self.read(step), *self.written(step)) for step in later])
        return Program(plan, device, len(self.memory), kept, widths, spans)

    def _buffers(self, steps: Sequence[FusedNode], kept: Container[int]) -> list[Buffer]:
        """The buffers of the allocations, with the sizes and the roles that they have in these steps this time.

        What is read before it is written is an input, also memory that a program never wrote.
        """
        read: set[int] = set()
        written: set[int] = set()
        for step in steps:
            read.update([n for n in self.read(step) if n not in written])
            written.update(self.written(step))
        found = []
        for n, allocation in enumerate(self.memory):
            role: Role = "output" if n in kept else "temporary"
            if allocation.buffer is not None or n in read:
                role = "inout" if n in written else "input"
            found.append(Buffer(allocation.size_bytes, role))
        return found


def nodes_of(recording: Recording) -> list[RecordedNode]:
    """The operations of a recording and where their arguments lie."""
    numbers = iter(recording.numbered)
    first = len(recording.allocations)
    members: dict[int, set[int]] = {}
    for n, _, allocation in recording.common:
        members.setdefault(first + n, set()).add(allocation)
    uses = [Use(p, owner, frozenset(members.get(owner, ()))) for p, owner in enumerate(recording.owners)]
    return [RecordedNode(op, tuple([uses[next(numbers)] for _ in op.args])) for op in recording.ops]


def members_of(recording: Recording, lists: Sequence[int]) -> dict[int, list[Use]]:
    """Where the tensors of a recording's ``lists`` lie, whose allocations and places follow its own; no others do."""
    allocation, first = len(recording.allocations), recording.first_list
    found: dict[int, list[Use]] = {first + n: [] for n in range(len(recording.lists))}
    place = first
    common = {(n, position): name for n, position, name in recording.common}
    known = {name: name for name in range(allocation)}
    for n in lists:
        bundle = recording.lists[n]
        for position in range(len(bundle.numbers)):
            name = common.get((n, position))
            number = allocation if name is None else known.setdefault(name, allocation)
            found[first + n].append(Use(NOWHERE if bundle.is_aligned else place, number))
            allocation += 1
            place += not bundle.is_aligned
    return found


class FusionCounts(NamedTuple):
    """Operations that joined another's kernel, that had one of their own, that were not run; plans that were found and
    made; how often each pattern occurred.
    """

    fusions: int
    bypasses: int
    eliminated: int
    plan_hits: int
    plan_misses: int
    patterns: dict[str, int]


class Scheduler:
    """Makes schedules and keeps the most recently used ones."""

    def __init__(self) -> None:
        self.schedules: dict[object, Schedule] = {}
        self._clock = 0  # counts uses: an order kept up to date would hash a key once more at each
        self.hits = 0
        self.misses = 0
        self.fusions = 0
        self.bypasses = 0
        self.eliminated = 0
        self.patterns = {pattern.name: pattern for pattern in BUILT_IN}
        self.pattern_counts: Counter[str] = Counter()

    def matcher(self) -> Matcher:
        """Finds the chains that have a name."""
        return Matcher(tuple(self.patterns.values()))

    def set_pattern(self, name: str, pattern: Pattern | None) -> None:
        """The chain that has a name from now on, and perhaps a kernel; None for none."""
        self.pattern_counts.pop(name, None)
        self.patterns.pop(name, None)
        if pattern is not None:
            self.patterns[name] = pattern
        self.schedules.clear()

    def counts(self) -> FusionCounts:
        """What :meth:`schedule` has counted."""
        patterns = {name: self.pattern_counts[name] for name in self.patterns}
        return FusionCounts(self.fusions, self.bypasses, self.eliminated, self.hits, self.misses, patterns)

    def schedule(self, recording: Recording, limits: Limits | None) -> Schedule:
        """The schedule of a recording, made if it is new; without ``limits`` nothing is fused. Counts what it does."""
        key = recording.key, limits
        found = self.schedules.get(key)
        if found is not None:
            self.hits += 1
        else:
            self.misses += 1
            if len(self.schedules) >= SCHEDULE_CACHE_SIZE:
                self._evict()
            found = self.schedules[key] = self.make(recording, limits)
        self._clock = found.last_use = self._clock + 1
        if limits is not None and found.recorded > 1:
            fused, alone, dropped = found.counts
            self.fusions += fused
            self.bypasses += alone
            self.eliminated += dropped
            for name, times in found.patterns:
                self.pattern_counts[name] += times
        return found

    def _evict(self) -> None:
        """Drops those that have not been used for the longest time: several, since that takes a look at all."""
        by_use = sorted(self.schedules, key=lambda key: self.schedules[key].last_use)
        for key in by_use[: SCHEDULE_CACHE_SIZE // EVICTED_PART]:
            del self.schedules[key]

    def make(self, recording: Recording, limits: Limits | None) -> Schedule:
        ops = recording.ops
        if limits is None or len(ops) == 1:
            steps = tuple([FusedNode.alone(n, op) for n, op in enumerate(ops)])
            return Schedule(steps, len(ops), tuple(range(len(recording.lists))))
        live = frozenset([number for number, alive in enumerate(recording.alive) if alive])
        matcher = self.matcher()
        nodes = nodes_of(recording)
        steps, first = tuple(fuse(nodes, live, limits, matcher)), recording.first_list
        lists = {use.place - first for step in steps for use in arguments(step, nodes) if use.place >= first}
        return Schedule(steps, len(ops), tuple(sorted(lists)), tuple(matcher.found.items()))
