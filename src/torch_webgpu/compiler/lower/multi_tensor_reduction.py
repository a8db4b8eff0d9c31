"""Reductions of each tensor of a list, and the collection of numbers, as dispatches of a few dozen tensors each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.target import Target
from torch_webgpu.wgsl.indexing import QUAD
from torch_webgpu.wgsl.launch import WORKGROUP, Lowered
from torch_webgpu.wgsl.multi_tensor_reduction_kernel import (
    UNROLL,
    ListReduction,
    Work,
    build_collect,
    build_partials,
    build_results,
)

from .multi_tensor import ALONE_NUMEL

MAX_TENSORS = 28
"""In one dispatch: some adapters bind many more buffers, but each kind of kernel takes time to compile."""
PIECE = UNROLL * WORKGROUP * QUAD * 2
"""Elements that one workgroup takes at least."""
MOST_PIECES = 1024
"""Workgroups for one tensor."""


def lower_list_reduction(
    op: Operation, alias: tuple[int, ...], target: Target, reduction: ListReduction, empty: frozenset[int]
) -> Lowered:
    """For arguments (the tensors that have elements, flat; the results of all, 0-dim and each at its buffer's start).

    ``empty``: which results are of tensors without elements.
    """
    sizes = [spec.shape[0] for spec in op.inputs]
    most = min(MAX_TENSORS, target.max_buffers - 1)
    piece = max([PIECE, *(-(-n // (MOST_PIECES * PIECE)) * PIECE for n in sizes)])
    groups = [-(-(n + QUAD - 1) // piece) for n in sizes]  # a tensor may begin in the middle of a four
    firsts = list(accumulate(groups, initial=0))
    work, states = Work(piece, groups, firsts), len(op.args)
    chunks = _chunks([n >= ALONE_NUMEL for n in sizes], most)
    launches = [build_partials(reduction, chunk, sizes, work, states) for chunk in chunks]
    full = iter(zip(firsts, groups))
    where = [(0, 0) if j in empty else next(full) for j in range(op.n_outputs)]
    for start in range(0, op.n_outputs, most):
        found = where[start : start + most]
        results = range(op.n_inputs + start, op.n_inputs + start + len(found))
        launches.append(build_results(reduction, results, found, states))
    return Lowered(tuple(launches), (max(1, firsts[-1]) * BY_NAME[reduction.state].itemsize,))


def lower_collect(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """For arguments (0-dim tensors of one dtype, their values in order, at the start of a buffer)."""
    most = min(MAX_TENSORS, (target.max_buffers - 1) // QUAD * QUAD)
    chunks = [range(start, min(start + most, op.n_inputs)) for start in range(0, op.n_inputs, most)]
    return Lowered(tuple([build_collect(op.inputs[0].dtype, chunk, op.n_inputs) for chunk in chunks]))


def _chunks(alone: Sequence[bool], most: int) -> list[range]:
    """Runs of at most so many tensors that follow each other; those that stand alone do."""
    chunks: list[range] = []
    for k, own in enumerate(alone):
        last = chunks[-1] if chunks else range(0)
        if own or not len(last) or len(last) == most or alone[k - 1]:
            chunks.append(range(k, k + 1))
        else:
            chunks[-1] = range(last.start, k + 1)
    return chunks
