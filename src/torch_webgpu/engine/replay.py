"""Plans: what a recording was lowered to, found again when the same recording comes back.

A recording's *signature* is its operations, which of their arguments start at the same place, and which allocations are
still alive. Offsets and scalars are not part of it: they are parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

from torch_webgpu.ir.graph import Node
from torch_webgpu.lower.fuse import Limits, Recorded, Step, Use, fuse

PLAN_CACHE_SIZE = 1024


@dataclass(frozen=True)
class Plan:
    """The steps of a recording of ``recorded`` nodes."""

    steps: tuple[Step, ...]
    recorded: int

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Operations that joined another's kernel, that have one of their own, that are not run at all."""
        alone = sum(len(step.nodes) == 1 for step in self.steps)
        run = sum(len(step.nodes) for step in self.steps)
        return run - alone, alone, self.recorded - run

    def nodes(self, recorded: list[Node]) -> list[Node]:
        """The fused nodes, over the allocations, offsets and scalars of this time's recording."""
        fused = []
        for step in self.steps:
            if len(step.nodes) == 1:
                fused.append(recorded[step.nodes[0]])
                continue
            allocations = tuple([recorded[n].allocations[k] for n, k in step.sources])
            offsets = tuple([recorded[n].offsets[k] for n, k in step.sources])
            params = tuple([p for n in step.scalars for p in recorded[n].params])
            fused.append(Node(step.op, allocations, offsets, params))
        return fused


class Planner:
    """Makes plans and keeps the most recently used ones."""

    def __init__(self) -> None:
        self.plans: OrderedDict[object, Plan] = OrderedDict()
        self.hits = 0
        self.misses = 0
        self.fusions = 0
        self.bypasses = 0
        self.eliminated = 0

    def plan(self, nodes: list[Node], limits: Limits) -> Plan:
        """The plan of a recording, made if it is new; counts what it does."""
        key, uses, live = signature(nodes)
        found = self.plans.get((key, limits))
        if found is not None:
            self.hits += 1
            self.plans.move_to_end((key, limits))
        else:
            self.misses += 1
            found = self.plans[key, limits] = self.make(nodes, uses, live, limits)
            if len(self.plans) > PLAN_CACHE_SIZE:
                self.plans.popitem(last=False)
        fused, alone, dropped = found.counts
        self.fusions += fused
        self.bypasses += alone
        self.eliminated += dropped
        return found

    def make(self, nodes: list[Node], uses: list[tuple[Use, ...]], live: frozenset[int], limits: Limits) -> Plan:
        recorded = [Recorded(node.op, u) for node, u in zip(nodes, uses, strict=True)]
        return Plan(tuple(fuse(recorded, live, limits)), len(nodes))


def signature(nodes: list[Node]) -> tuple[object, list[tuple[Use, ...]], frozenset[int]]:
    """The key of a recording; each node's uses; the numbers of the allocations that are alive."""
    numbers: dict[int, int] = {}
    places: dict[tuple[int, int], Use] = {}
    alive: list[bool] = []
    uses: list[tuple[Use, ...]] = []
    key: list[object] = []
    for node in nodes:
        row = []
        for allocation, offset in zip(node.allocations, node.offsets, strict=True):
            number = numbers.get(id(allocation))
            if number is None:
                number = numbers[id(allocation)] = len(numbers)
                alive.append(allocation.alive)
            use = places.get((number, offset))
            if use is None:
                use = places[number, offset] = Use(len(places), number)
            row.append(use)
        uses.append(tuple(row))
        key.append((node.op.id, *row))
    live = frozenset([number for number, is_alive in enumerate(alive) if is_alive])
    return (tuple(key), tuple(alive)), uses, live
