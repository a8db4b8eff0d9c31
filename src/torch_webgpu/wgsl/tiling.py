"""How a reduction's work is laid out: its iteration space, and which threads take which part of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_webgpu.ir.combine import COMBINES
from torch_webgpu.ir.expr import walk
from torch_webgpu.ir.operation import Operation, Reduction, Spec
from torch_webgpu.layout import Shape, broadcast_strides, collapse, iteration_order

from .code_size import MAX_UNROLLED, code_size
from .indexing import QUAD
from .launch import WORKGROUP

TARGET_GROUPS = 1024
"""Workgroups that fill a large GPU (132 multiprocessors of 2048 threads); fewer, and a reduction is split."""
SPLIT_FROM = 64
"""Elements a thread must have to itself before a second launch (some 5 µs) pays."""
MAX_SPLITS = 1024
MAX_MAP_SPLITS = 256
"""With maps every workgroup merges all partial results of its outputs."""
UNROLL = {1: 8, 4: 4}
"""Runs that a thread has in flight at once, by their width: enough bytes to hide the latency of memory."""
MAX_RESIDENT = 16
"""Runs that a thread keeps in registers at most: the code has a copy of everything for each. Rows of 16,384 elements
are normalised 1.2 to 1.4 times as fast on an H200 as when they are read twice."""
REGISTERS = 64
"""Elements that a thread keeps in registers at most."""


def in_flight(body: Reduction, width: int) -> int:
    """How many runs of ``width`` points a thread has in flight at once: one where the points' code is much."""
    return UNROLL[width] if width * UNROLL[width] * point_size(body) <= MAX_UNROLLED else 1


def is_heavy(body: Reduction) -> bool:
    """Whether the points' code is so much that threads should compute them one by one."""
    return QUAD * point_size(body) > MAX_UNROLLED


def point_size(body: Reduction) -> int:
    """The code that a point takes."""
    return code_size((*body.values, *body.maps))


@dataclass(frozen=True)
class Space:
    """The points of a reduction: ``kept`` dimensions (one output each) times ``reduced`` ones, collapsed.

    ``kept_strides[k]`` and ``reduced_strides[k]`` step through argument ``k``, 0 where it is broadcast.
    ``kept_dims``/``reduced_dims``: which dimension of the iteration shape each one is, if coordinates are asked for
    (nothing is collapsed then); else empty.
    """

    kept: Shape
    reduced: Shape
    kept_strides: tuple[Shape, ...]
    reduced_strides: tuple[Shape, ...]
    kept_dims: tuple[int, ...]
    reduced_dims: tuple[int, ...]
    driver: int

    @property
    def outputs(self) -> int:
        return prod(self.kept)

    @property
    def extent(self) -> int:
        return prod(self.reduced)


def kept_and_reduced(body: Reduction) -> tuple[Shape, Shape]:
    """The dimensions of the iteration shape that have an output each, and those that are reduced."""
    rank = len(body.shape)
    reduced = tuple(sorted(d % rank for d in body.dims)) if rank else ()
    return tuple(d for d in range(rank) if d not in reduced), reduced


def space_of(op: Operation, body: Reduction) -> Space:
    """The iteration space of a reduction, in the memory order of its largest argument where the order is free."""
    kept_dims, reduced_dims = kept_and_reduced(body)
    strides = [broadcast_strides(spec.shape, spec.strides, body.shape) for spec in op.inputs]
    strides += [root_strides(spec, body.shape, kept_dims) for spec in op.outputs]
    kept = tuple(body.shape[d] for d in kept_dims)
    reduced = tuple(body.shape[d] for d in reduced_dims)
    kept_strides = [tuple(s[d] for d in kept_dims) for s in strides]
    reduced_strides = [tuple(s[d] for d in reduced_dims) for s in strides]
    driver = max(range(len(op.args)), key=lambda k: prod(op.args[k].shape))
    if any(e.op in ("index", "linear") for e in walk((*body.values, *body.roots, *body.maps))):
        kept, kept_strides = kept or (1,), [s or (0,) for s in kept_strides]
        reduced, reduced_strides = reduced or (1,), [s or (0,) for s in reduced_strides]
    else:
        ordered = body.running or any(COMBINES[name].ordered for name in body.combine)
        order = None if ordered else iteration_order(reduced, reduced_strides[driver])
        kept, kept_strides = collapse(kept, kept_strides, iteration_order(kept, kept_strides[driver]))
        reduced, reduced_strides = collapse(reduced, reduced_strides, order)
        kept_dims = reduced_dims = ()
    return Space(kept, reduced, tuple(kept_strides), tuple(reduced_strides), kept_dims, reduced_dims, driver)


def root_strides(spec: Spec, shape: Shape, kept_dims: tuple[int, ...]) -> Shape:
    """An output's strides over the iteration shape; it may lack the reduced dimensions."""
    if len(spec.shape) == len(shape):
        return broadcast_strides(spec.shape, spec.strides, shape)
    own = dict(zip(kept_dims, spec.strides, strict=True))
    return tuple(own.get(d, 0) for d in range(len(shape)))


@dataclass(frozen=True)
class Tiling:
    """``lanes`` threads share an output, a workgroup takes ``rows`` outputs, ``splits`` workgroups share them.

    ``across``: neighbouring threads take neighbouring outputs instead of neighbouring reduced elements; whichever lie
    next to each other in memory. ``width``: consecutive reduced elements that a thread takes at a time.
    ``resident``: how many of these a thread keeps in registers for the maps; 0 where it reads them again.
    """

    lanes: int
    across: bool
    splits: int = 1
    width: int = 1
    resident: int = 0

    @property
    def rows(self) -> int:
        return WORKGROUP // self.lanes


def tile(space: Space, body: Reduction, width: int) -> Tiling:
    """A tiling that reads memory in order and keeps a large GPU busy."""
    across = fastest(space.kept, space.kept_strides[space.driver]) < fastest(
        space.reduced, space.reduced_strides[space.driver]
    )
    if across:
        rows = min(power_of_two(space.outputs), max(32, WORKGROUP // batches(space.extent, width)))
        return Tiling(WORKGROUP // rows, across, splits(space, body, WORKGROUP // rows))
    runs = -(-space.extent // width)
    if body.maps and not body.running and not is_heavy(body):
        streams = {e.args[0] for e in walk(body.values) if e.op == "load" and any(space.reduced_strides[e.args[0]])}
        lanes, resident = resident_runs(runs, min(MAX_RESIDENT, REGISTERS // (width * max(1, len(streams)))))
        if resident:
            return Tiling(lanes, across, 1, width, resident)
    lanes = batches(space.extent, width)
    return Tiling(lanes, across, splits(space, body, lanes), width)


def batches(extent: int, width: int) -> int:
    """The lanes, a power of two, that can each take a whole batch of runs."""
    return min(WORKGROUP, 1 << max(0, (extent // (width * UNROLL[width])).bit_length() - 1))


def resident_runs(runs: int, most: int) -> tuple[int, int]:
    """Lanes, and runs per lane, for a row of ``runs`` runs kept in registers; 0 runs if a lane cannot keep its share.

    Lanes that divide the row evenly are preferred, since then every thread has a whole batch.
    """
    lanes = wanted = power_of_two(-(-runs // 4))
    while lanes > 16 and runs % lanes and runs // (lanes // 2) <= most:
        lanes //= 2
    lanes = lanes if runs % lanes == 0 else wanted
    per_lane = -(-runs // lanes)
    return lanes, per_lane if per_lane <= most else 0


def splits(space: Space, body: Reduction, lanes: int) -> int:
    """Into how many parts the rows are split so that there are enough workgroups."""
    groups = -(-space.outputs // (WORKGROUP // lanes))
    per_lane = -(-space.extent // lanes)
    if per_lane < SPLIT_FROM:
        return 1
    most = MAX_MAP_SPLITS if body.maps else MAX_SPLITS
    return max(1, min(TARGET_GROUPS // groups, per_lane // (SPLIT_FROM // 4), most))


def fastest(sizes: Shape, strides: Shape) -> float:
    """The smallest step through memory, infinite where there is none."""
    return min((stride for size, stride in zip(sizes, strides) if size > 1 and stride), default=float("inf"))


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``, between 1 and a workgroup."""
    return min(WORKGROUP, 1 << max(0, n - 1).bit_length())


def doubles(first: int, end: int) -> list[int]:
    """``first``, which is not 0, and its doubles below ``end``."""
    found = []
    while first < end:
        found.append(first)
        first *= 2
    return found
