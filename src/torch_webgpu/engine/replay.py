"""Plans: what a recording was lowered to, found again when the same recording comes back.

Its key (``Recording.key``) is its operations, which of their arguments start at the same place, and which allocations
are still alive. Offsets and scalars are not part of it: they are parameters.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from torch_webgpu.config import config
from torch_webgpu.ir.graph import Node
from torch_webgpu.lower.fuse import Limits, Recorded, Step, Use, fuse
from torch_webgpu.lower.patterns import BUILT_IN, Matcher, Pattern
from torch_webgpu.lower.planning import make_plan, scalar_words
from torch_webgpu.plan import Buffer, Role

from .program import Program

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .lane import Recording

PLAN_CACHE_SIZE = 1024


@dataclass(eq=False)
class Plan:
    """The steps of a recording of ``recorded`` nodes, and the programs it has become, by device."""

    steps: tuple[Step, ...]
    recorded: int
    is_new: bool = True
    patterns: tuple[tuple[str, int], ...] = ()  # named chains and how often each occurs
    programs: dict[int, Program] = field(default_factory=dict)

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Operations that joined another's kernel, that have one of their own, that are not run at all."""
        alone = sum(step.unchanged for step in self.steps)
        run = sum(len(step.nodes) for step in self.steps)
        return run - alone, alone, self.recorded - run

    def nodes(self, recorded: list[Node]) -> list[Node]:
        """The fused nodes, over the allocations, offsets and scalars of this time's recording."""
        return [fused_node(step, recorded) for step in self.steps]

    def program(self, recording: Recording, device: Device) -> Program:
        """Its program; made from this recording if it is the first."""
        found = self.programs.get(device.index)
        if found is None:
            nodes = recorded(recording)
            widths = [len(row) for row in recording.numbers]
            plan = make_plan(self.steps, nodes, _buffers(recording, nodes), scalar_words(widths), device.caps)
            if "plan" in config().debug:
                print(f"[webgpu:{device.index}] plan of {len(nodes)} operations\n{plan}")
            kept = [n for n, alive in enumerate(recording.alive) if alive]
            found = self.programs[device.index] = Program(plan, device, len(recording.allocations), kept, widths)
        return found


def fused_node(step: Step, recorded: Sequence[Node]) -> Node:
    """The node that a step stands for, over this time's allocations, offsets and scalars."""
    if step.unchanged:
        return recorded[step.nodes[0]]
    allocations = tuple([recorded[n].allocations[k] for n, k in step.sources])
    offsets = tuple([recorded[n].offsets[k] for n, k in step.sources])
    return Node(step.op, allocations, offsets, tuple([p for n in step.scalars for p in recorded[n].params]))


def recorded(recording: Recording) -> list[Recorded]:
    """The operations of a recording and where their arguments lie."""
    numbers = iter(recording.numbered)
    found = []
    for op in recording.ops:
        places = [next(numbers) for _ in op.args]
        found.append(Recorded(op, tuple([Use(p, recording.owners[p]) for p in places])))
    return found


def _buffers(recording: Recording, nodes: Sequence[Recorded]) -> list[Buffer]:
    """The buffers of a recording's allocations, with the sizes and the roles that they have this time."""
    written = {use.allocation for node in nodes for use in node.uses[node.op.n_inputs :]}
    found = []
    for n, (allocation, alive) in enumerate(zip(recording.allocations, recording.alive)):
        role: Role = "output" if alive else "temporary"
        if allocation.buffer is not None:
            role = "inout" if n in written else "input"
        found.append(Buffer(allocation.size_bytes, role))
    return found


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

    def set_patterns(self, patterns: Iterable[Pattern]) -> None:
        """What chains have a name, and perhaps a kernel, from now on."""
        self.patterns = {pattern.name: pattern for pattern in patterns}
        self.plans.clear()

    def plan(self, recording: Recording, limits: Limits | None) -> Plan:
        """The plan of a recording, made if it is new; without ``limits`` nothing is fused. Counts what it does."""
        key = recording.key, limits
        found = self.plans.get(key)
        if found is not None:
            found.is_new = False
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
