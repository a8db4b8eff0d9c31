"""The horizontal fusion pass: independent dispatches become one, and what a dispatch costs is paid once.

A step moves up to one before it if nothing between them, that one included, uses what either writes. That pays for
dispatches that do not fill a GPU by themselves: products of one vector with several matrices (queries, keys and
values), the same small kernel over several tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod

from torch_webgpu.plan import Clear, Label, Plan, Step, Word
from torch_webgpu.target import Target
from torch_webgpu.wgsl import merged_kernels
from torch_webgpu.wgsl.kernel import Binding, Kernel

WINDOW = 16
"""How many dispatches up a step may move: what it writes must be in memory for so much longer."""
MAX_PARTS = 8
MAX_TEXT = 48_000
"""Characters of the parts' WGSL. Compilers take seconds for more."""
MAX_MATRICES_TEXT = 72_000
"""The same of products on subgroup matrices, which gain more: queries, keys and values are three of them."""
FULL_GROUPS = 4096
"""Workgroups that fill a large GPU a few times: beyond, a dispatch takes much longer than it costs."""


@dataclass
class Uses:
    """The buffers, or storages, that some work reads and writes, by number."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)

    def conflicts(self, other: Uses) -> bool:
        """Whether the order of the two matters."""
        return not (
            self.writes.isdisjoint(other.writes)
            and self.writes.isdisjoint(other.reads)
            and self.reads.isdisjoint(other.writes)
        )

    def add(self, other: Uses) -> None:
        self.reads |= other.reads
        self.writes |= other.writes


@dataclass
class _Group:
    """Steps that run as one, and the buffers that they bind, each as it is declared; empty for a :class:`Clear`."""

    steps: list[Step | Clear] = field(default_factory=list)
    origins: tuple[int, ...] = ()
    labels: list[Label] = field(default_factory=list)
    buffers: dict[int, Binding] = field(default_factory=dict)
    uses: Uses = field(default_factory=Uses)
    workgroups: int = 0


def fuse_horizontally(plan: Plan, target: Target) -> Plan:
    """A plan that does the same in no more steps."""
    groups: list[_Group] = []
    for number, step in enumerate(plan.steps):
        new = _group_of(plan, step, plan.origins[number] if plan.origins else ())
        new.labels = list(plan.labels[number : number + 1])
        for group in reversed(groups[-WINDOW:]):
            if _fit(plan, group, new, target):
                group.steps += new.steps
                group.origins += new.origins
                group.labels += new.labels
                group.buffers |= new.buffers
                group.uses.add(new.uses)
                group.workgroups += new.workgroups
                break
            if group.uses.conflicts(new.uses):
                groups.append(new)
                break
        else:
            groups.append(new)
    if len(groups) == len(plan.steps):
        return plan
    kernels: dict[Kernel, int] = {}
    steps = tuple([_step(plan, group, kernels) for group in groups])
    origins = tuple([group.origins for group in groups]) if plan.origins else ()
    labels = tuple([_label(group.labels) for group in groups]) if plan.labels else ()
    return replace(plan, kernels=tuple(kernels), steps=steps, origins=origins, labels=labels)


def _label(labels: list[Label]) -> Label:
    """Of steps that run as one."""
    names = dict.fromkeys([label.operation for label in labels])
    return Label("+".join(names), sum([label.size_bytes for label in labels]))


def _group_of(plan: Plan, step: Step | Clear, origins: tuple[int, ...]) -> _Group:
    if isinstance(step, Clear):
        return _Group([step], origins, uses=Uses(writes={step.buffer}))
    bound = list(zip(step.bindings, plan.kernels[step.kernel].bindings, strict=True))
    # All kernels may raise flags, in any order.
    used = [(buffer, binding) for buffer, binding in bound if plan.buffers[buffer].role != "errors"]
    writes = {buffer for buffer, binding in used if binding.access == "read_write"}
    reads = {buffer for buffer, _ in used} - writes
    return _Group([step], origins, [], dict(bound), Uses(reads, writes), prod(step.grid))


def _fit(plan: Plan, group: _Group, new: _Group, target: Target) -> bool:
    """Whether ``new``, a step, can become part of ``group``."""
    first, step = group.steps[0], new.steps[0]
    if isinstance(first, Clear) or isinstance(step, Clear) or group.uses.conflicts(new.uses):
        return False
    if len(group.steps) == MAX_PARTS or group.workgroups + new.workgroups > FULL_GROUPS:
        return False
    both = group.buffers | new.buffers
    if len(both) > target.max_buffers or any(plan.buffers[b].size_bytes > target.max_binding_bytes for b in both):
        return False
    shared = group.buffers.keys() & new.buffers.keys()
    if any(replace(group.buffers[b], name="") != replace(new.buffers[b], name="") for b in shared):
        return False
    parts = [plan.kernels[s.kernel] for s in (*group.steps, step) if isinstance(s, Step)]
    return can_be_one(parts) and all(_is_plain(s) for s in (first, step))


def can_be_one(parts: Sequence[Kernel]) -> bool:
    """Whether kernels can be parts of one."""
    if len({part.workgroup_size for part in parts}) > 1 or not all(map(merged_kernels.can_be_part, parts)):
        return False
    on_matrices = all(map(merged_kernels.has_matrices, parts))
    if sum([len(part.body) for part in parts]) > (MAX_MATRICES_TEXT if on_matrices else MAX_TEXT):
        return False
    if len(set(parts)) == 1 or not any(map(merged_kernels.has_workgroup_memory, parts)):
        return True
    return on_matrices and _are_of_one_tile(parts)


def _are_of_one_tile(parts: Sequence[Kernel]) -> bool:
    """Whether different kernels are products of one tile, each with an epilogue of its own, which need as many
    registers as each other. Others would run with those of the part that has most, and three tiles on registers have
    not enough (BERT's queries, keys and values on an H200, µs: 241 instead of 135).
    """
    return len({part.name for part in parts}) == 1 and all(map(merged_kernels.can_share_memory, parts))


def _is_plain(step: Step) -> bool:
    """Whether its workgroups are a row, and none of its buffers is bound twice."""
    return step.grid[1:] == (1, 1) and len(set(step.bindings)) == len(step.bindings)


def _step(plan: Plan, group: _Group, kernels: dict[Kernel, int]) -> Step | Clear:
    """What a group has become; ``kernels``: their numbers so far."""
    steps = [step for step in group.steps if isinstance(step, Step)]
    if not steps:
        return group.steps[0]
    parts = tuple([plan.kernels[step.kernel] for step in steps])
    if len(steps) == 1:
        return replace(steps[0], kernel=kernels.setdefault(parts[0], len(kernels)))
    place = {buffer: n for n, buffer in enumerate(group.buffers)}
    owners = tuple([tuple([place[buffer] for buffer in step.bindings]) for step in steps])
    kernel = merged_kernels.together(parts, owners)
    ends = accumulate([step.grid[0] for step in steps[:-1]])
    words: list[Word] = [*ends, *(word for step in steps for word in step.words)]
    bindings = tuple(group.buffers)
    return Step(kernels.setdefault(kernel, len(kernels)), bindings, tuple(words), (group.workgroups, 1, 1))
