"""Reductions of each tensor of a list, and the collection of numbers, as dispatches of a few dozen tensors each."""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Operation
from torch_webgpu.wgsl.indexing import QUAD
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered, Source, Value, grid_for
from torch_webgpu.wgsl.link import HostCaps
from torch_webgpu.wgsl.list_reduction import (
    UNROLL,
    ListReduction,
    build_collect,
    build_partials,
    build_results,
    scalars,
)

from .horizontal import ALONE_NUMEL

MAX_TENSORS = 28
"""In one dispatch: some adapters bind many more buffers, but each kind of kernel takes time to compile."""
PIECE = UNROLL * WORKGROUP * QUAD * 2
"""Elements that one workgroup takes at least."""
MOST_PIECES = 1024
"""Workgroups for one tensor."""


def lower_list_reduction(
    op: Operation, alias: tuple[int, ...], caps: HostCaps, reduction: ListReduction, empty: frozenset[int]
) -> Lowered:
    """For arguments (the tensors that have elements, flat; the results of all, 0-dim and each at its buffer's start).

    ``empty``: which results are of tensors without elements.
    """
    sizes = [spec.shape[0] for spec in op.inputs]
    most = min(MAX_TENSORS, caps.max_buffers - 1)
    piece = max([PIECE, *(-(-n // (MOST_PIECES * PIECE)) * PIECE for n in sizes)])
    counts = [-(-(n + QUAD - 1) // piece) for n in sizes]  # a tensor may begin in the middle of a four
    firsts = [sum(counts[:k]) for k in range(len(counts) + 1)]
    state = len(op.args)
    launches = []
    for chunk in _chunks([n >= ALONE_NUMEL for n in sizes], most):
        values: list[Value] = [Source("scalar", k) for k in scalars(reduction.contribution)]
        groups = sum(counts[k] for k in chunk)
        values += [firsts[chunk[0]], piece // QUAD, groups]
        for k in chunk:
            start = firsts[k] - firsts[chunk[0]]
            values += [Source("offset", k), sizes[k], *([start] if k != chunk[0] else [])]
        kernel = build_partials(reduction, len(chunk))
        launches.append(Launch(kernel, (*chunk, state), tuple(values), grid_for(groups * WORKGROUP)))
    full = iter(range(len(sizes)))
    where = [(0, 0) if j in empty else (firsts[k := next(full)], counts[k]) for j in range(op.n_outputs)]
    for start in range(0, op.n_outputs, most):
        chunk = range(start, min(start + most, op.n_outputs))
        values = [Source("scalar", k) for k in scalars(reduction.result)]
        values += [value for j in chunk for value in where[j]]
        kernel = build_results(reduction, len(chunk))
        results = (op.n_inputs + j for j in chunk)
        launches.append(Launch(kernel, (state, *results), tuple(values), (len(chunk), 1, 1)))
    return Lowered(tuple(launches), (max(1, firsts[-1]) * BY_NAME[reduction.state].itemsize,))


def lower_collect(op: Operation, alias: tuple[int, ...], caps: HostCaps) -> Lowered:
    """For arguments (0-dim tensors of one dtype, their values in order, at the start of a buffer)."""
    most = min(MAX_TENSORS, (caps.max_buffers - 1) // QUAD * QUAD)
    launches = []
    for start in range(0, op.n_inputs, most):
        chunk = range(start, min(start + most, op.n_inputs))
        values: list[Value] = [start // QUAD, *(Source("offset", k) for k in chunk)]
        kernel = build_collect(op.inputs[0].dtype, len(chunk))
        launches.append(Launch(kernel, (*chunk, op.n_inputs), tuple(values), grid_for(-(-len(chunk) // QUAD))))
    return Lowered(tuple(launches))


def _chunks(alone: Sequence[bool], most: int) -> list[range]:
    """Runs of at most so many tensors that follow each other; those that stand alone do."""
    found: list[range] = []
    for k, own in enumerate(alone):
        last = found[-1] if found else range(0)
        if own or not len(last) or len(last) == most or alone[k - 1]:
            found.append(range(k, k + 1))
        else:
            found[-1] = range(last.start, k + 1)
    return found
