"""Plans: what a recording was lowered to, found again when the same recording comes back.

Its key (``Recording.key``) is its operations, which of their arguments start at the same place, and which allocations
are still alive. Offsets and scalars are not part of it: they are parameters.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from torch_webgpu.config import config, is_printed, print_stage
from torch_webgpu.lower.fuse import Limits, Recorded, Step, Use, fuse
from torch_webgpu.lower.patterns import BUILT_IN, Matcher, Pattern
from torch_webgpu.lower.planning import arguments, make_plan, scalar_words
from torch_webgpu.plan import Buffer, Role, check

from .program import Program

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .lane import Recording
    from .tensor import Allocation

PLAN_CACHE_SIZE = 1024


@dataclass(eq=False)
class Plan:
    """The steps of a recording of ``recorded`` nodes, and the programs it has become, by device."""

    steps: tuple[Step, ...]
    recorded: int
    patterns: tuple[tuple[str, int], ...] = ()  # named chains and how often each occurs
    programs: dict[int, Program] = field(default_factory=dict)

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
            found = self.programs[device.index] = _program(self.steps, recording, device, _kept(recording))
            if is_printed("plan"):
                print_stage("plan", f"of {self.recorded} operations on webgpu:{device.index}", str(found.plan))
        return found

    def step_program(self, number: int, recording: Recording, device: Device) -> Program:
        """A program that does one of its steps alone, and leaves what the later ones use."""
        nodes = recorded(recording)
        later = {use.allocation for step in self.steps[number + 1 :] for use in arguments(step, nodes)}
        return _program(self.steps[number : number + 1], recording, device, _kept(recording) | later)

    def written(self, number: int, recording: Recording) -> list[Allocation]:
        """What one of its steps writes."""
        step = self.steps[number]
        uses = arguments(step, recorded(recording))[step.op.n_inputs :]
        return [recording.allocations[use.allocation] for use in uses]


def _kept(recording: Recording) -> set[int]:
    """The numbers of the allocations that can be read when a recording has run."""
    return {number for number, alive in enumerate(recording.alive) if alive}


def _program(steps: Sequence[Step], recording: Recording, device: Device, kept: set[int]) -> Program:
    nodes = recorded(recording)
    widths = [len(row) for row in recording.numbers]
    plan, spans = make_plan(steps, nodes, _buffers(recording, steps, nodes), scalar_words(widths), device.caps)
    if "verify" in config().debug:
        check(plan)
    return Program(plan, device, len(recording.allocations), kept, widths, spans)


def recorded(recording: Recording) -> list[Recorded]:
    """The operations of a recording and where their arguments lie."""
    numbers = iter(recording.numbered)
    found = []
    for op in recording.ops:
        places = [next(numbers) for _ in op.args]
        found.append(Recorded(op, tuple([Use(p, recording.owners[p]) for p in places])))
    return found


def _buffers(recording: Recording, steps: Sequence[Step], nodes: Sequence[Recorded]) -> list[Buffer]:
    """The buffers of a recording's allocations, with the sizes and the roles that they have in these steps this time.

    What is read before it is written is an input, also memory that a program never wrote.
    """
    read: set[int] = set()
    written: set[int] = set()
    for step in steps:
        uses = arguments(step, nodes)
        read.update([use.allocation for use in uses[: step.op.n_inputs] if use.allocation not in written])
        written.update([use.allocation for use in uses[step.op.n_inputs :]])
    found = []
    for n, (allocation, alive) in enumerate(zip(recording.allocations, recording.alive)):
        role: Role = "output" if alive else "temporary"
        if allocation.buffer is not None or n in read:
            role = "inout" if n in written else "input"
        found.append(Buffer(allocation.size_bytes, role))
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


class Planner:
    """Makes plans and keeps the most recently used ones."""

    def __init__(self) -> None:
        self.plans: OrderedDict[object, Plan] = OrderedDict()
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
        self.plans.clear()

    def counts(self) -> FusionCounts:
        """What :meth:`plan` has counted."""
        patterns = {name: self.pattern_counts[name] for name in self.patterns}
        return FusionCounts(self.fusions, self.bypasses, self.eliminated, self.hits, self.misses, patterns)

    def plan(self, recording: Recording, limits: Limits | None) -> Plan:
        """The plan of a recording, made if it is new; without ``limits`` nothing is fused. Counts what it does."""
        key = recording.key, limits
        found = self.plans.get(key)
        if found is not None:
            self.hits += 1
            self.plans.move_to_end(key)
        else:
            self.misses += 1
            found = self.plans[key] = self.make(recording, limits)
            if len(self.plans) > PLAN_CACHE_SIZE:
                self.plans.popitem(last=False)
        if limits is not None and found.recorded > 1:
            fused, alone, dropped = found.counts
            self.fusions += fused
            self.bypasses += alone
            self.eliminated += dropped
            for name, times in found.patterns:
                self.pattern_counts[name] += times
        return found

    def make(self, recording: Recording, limits: Limits | None) -> Plan:
        ops = recording.ops
        if limits is None or len(ops) == 1:
            return Plan(tuple([Step(op, (), (n,), (n,)) for n, op in enumerate(ops)]), len(ops))
        live = frozenset([number for number, alive in enumerate(recording.alive) if alive])
        matcher = self.matcher()
        steps = tuple(fuse(recorded(recording), live, limits, matcher))
        return Plan(steps, len(ops), patterns=tuple(matcher.found.items()))
