"""The joint tiles pass: independent products that can run as one dispatch choose one tile, for all their columns.

By itself each of the queries, keys and values of a prompt is a product of few blocks, and gets small ones so that a
GPU is busy at all. Side by side they keep it busy with larger ones. And only kernels whose workgroups are of one size
become one (:mod:`.horizontal_fusion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_webgpu.compiler.fuse.nodes import FusedNode
from torch_webgpu.compiler.lower.lower import lower
from torch_webgpu.ir.graph import Graph, Layout
from torch_webgpu.kernels.matmul.matmul import Family, beside, columns_of, family_of
from torch_webgpu.target import Target
from torch_webgpu.wgsl.merged_kernels import has_matrices

from .horizontal_fusion import MAX_PARTS, WINDOW, Uses, can_be_one
from .lowering import aliases, arguments_of

MOST_SUMS = 1 << 23
"""Of products that run as one: 256 blocks of the largest tile. Beyond, each of them keeps a GPU busy by itself."""


@dataclass
class _Group:
    """Products that can run side by side: their numbers among the calls, and how many columns they have."""

    family: Family
    members: list[int] = field(default_factory=list)
    columns: int = 0


def choose_tiles_together(
    fused: Sequence[FusedNode], graph: Graph, layout: Layout, target: Target
) -> tuple[FusedNode, ...]:
    """The same calls, whose products know of those beside them."""
    families = [family_of(step.op, target) for step in fused]
    if len(families) - families.count(None) < 2:
        return tuple(fused)
    groups: dict[int, _Group] = {}
    uses: list[Uses] = []
    for n, (step, family) in enumerate(zip(fused, families, strict=True)):
        uses.append(_uses_of(step, graph, layout))
        if family is not None:
            group = _group_beside(n, family, columns_of(step.op), uses, groups)
            if group is None:
                group = groups[n] = _Group(family)
            group.members.append(n)
            group.columns += columns_of(step.op)
    result = list(fused)
    for group in groups.values():
        if len(group.members) > 1:
            for n, step in _together([(n, fused[n]) for n in group.members], graph, target):
                result[n] = step
    return tuple(result)


def _uses_of(step: FusedNode, graph: Graph, layout: Layout) -> Uses:
    """The storages that a fused call uses."""
    arguments, n = arguments_of(step, graph), step.op.n_inputs
    read, written = [{a.storage for a in layout.tensors_of(part)} for part in (arguments[:n], arguments[n:])]
    return Uses(read, written)


def _together(members: list[tuple[int, FusedNode]], graph: Graph, target: Target) -> list[tuple[int, FusedNode]]:
    """Products, numbered, which know of each other: of as many of the first as can be one dispatch, and of as many of
    the rest.
    """
    if len(members) == 1:
        return members
    columns = sum([columns_of(step.op) for _, step in members])
    joint = [(n, replace(step, op=beside(step.op, columns - columns_of(step.op)))) for n, step in members]
    lowered = [lower(step.op, aliases(step, graph), target) for _, step in joint]
    kernels = [[launch.kernel for launch in one.launches] for one in lowered]
    alike = len(set(map(len, kernels))) == 1 and any(map(has_matrices, kernels[0]))
    if alike and all(can_be_one(parts) for parts in zip(*kernels)):
        return joint
    first = -(-len(members) // 2)
    return [*_together(members[:first], graph, target), *_together(members[first:], graph, target)]


def _group_beside(
    n: int, family: Family, columns: int, uses: Sequence[Uses], groups: Mapping[int, _Group]
) -> _Group | None:
    """That which product ``n`` can be moved up to. ``groups``: by their first members."""
    for other in range(n - 1, max(-1, n - 1 - WINDOW), -1):
        if uses[n].conflicts(uses[other]):
            return None
        group = groups.get(other)
        if group is not None and group.family == family and len(group.members) < MAX_PARTS:
            sums = family.slices * family.rows * (group.columns + columns)
            if sums <= MOST_SUMS:
                return group
    return None
