"""Plans: what a recording was lowered to, found again when the same recording comes back.

A recording's *signature* is its operations, which of their arguments start at the same place, and which allocations are
still alive. Offsets and scalars are not part of it: they are parameters.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch_webgpu.ir.graph import Node
from torch_webgpu.lower.fuse import Limits, Recorded, Step, Use, fuse
from torch_webgpu.lower.patterns import BUILT_IN, Matcher, Pattern

from .program import Program, fused_node

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

Places = dict[tuple[Any, int], int]

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

    def program(self, recorded: list[Node], device: Device) -> Program:
        """Its program; made from this recording if it is the first."""
        found = self.programs.get(device.index)
        if found is None:
            found = self.programs[device.index] = Program(self.steps, recorded, device)
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

    def set_patterns(self, patterns: Iterable[Pattern]) -> None:
        """What chains have a name, and perhaps a kernel, from now on."""
        self.patterns = {pattern.name: pattern for pattern in patterns}
        self.plans.clear()

    def plan(self, nodes: list[Node], limits: Limits | None) -> Plan:
        """The plan of a recording, made if it is new; without ``limits`` nothing is fused. Counts what it does."""
        key, places = signature(nodes)
        found = self.plans.get((key, limits))
        if found is not None:
            found.is_new = False
            self.hits += 1
            self.plans.move_to_end((key, limits))
        else:
            self.misses += 1
            found = self.plans[key, limits] = self.make(nodes, places, limits)
            if len(self.plans) > PLAN_CACHE_SIZE:
                self.plans.popitem(last=False)
        if limits is not None and len(nodes) > 1:
            fused, alone, dropped = found.counts
            self.fusions += fused
            self.bypasses += alone
            self.eliminated += dropped
            for name, times in found.patterns:
                self.pattern_counts[name] += times
        return found

    def make(self, nodes: list[Node], places: Places, limits: Limits | None) -> Plan:
        if limits is None or len(nodes) == 1:
            return Plan(tuple([Step(node.op, (), (n,), (n,)) for n, node in enumerate(nodes)]), len(nodes))
        numbers: dict[Any, int] = {}
        for allocation, _ in places:
            numbers.setdefault(allocation, len(numbers))
        recorded = []
        for node in nodes:
            arguments = zip(node.allocations, node.offsets, strict=True)
            recorded.append(Recorded(node.op, tuple([Use(places[a, o], numbers[a]) for a, o in arguments])))
        live = frozenset([number for allocation, number in numbers.items() if allocation.alive])
        matcher = Matcher(tuple(self.patterns.values()))
        steps = tuple(fuse(recorded, live, limits, matcher))
        return Plan(steps, len(nodes), patterns=tuple(matcher.found.items()))


def signature(nodes: list[Node]) -> tuple[object, Places]:
    """The key of a recording, and the number of each place: an allocation and an offset in it."""
    places: Places = {}
    key: list[object] = []
    number = places.setdefault
    for op, allocations, offsets, _ in nodes:
        key.append(op.id)
        key.append(tuple([number(place, len(places)) for place in zip(allocations, offsets)]))
    owners = dict.fromkeys([allocation for allocation, _ in places])
    order = {allocation: n for n, allocation in enumerate(owners)}
    same = tuple([order[allocation] for allocation, _ in places])
    return (tuple(key), same, tuple([allocation.alive for allocation in owners])), places
