"""LU factorization of matrices by blocks of columns: a dispatch for each.

Rows stay where they are, and ``order`` has the row of each place, so that in a dispatch nobody moves what others read;
the rows of the lower factor are brought in order at the end. The workgroup that factors the next block updates its
columns itself, while the others are still at those to its right: a block takes one dispatch, and not two.
"""

from __future__ import annotations

from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .lu import elimination, elimination_bytes
from .matrices import MatrixKernel, power_above
from .substitution import fours, substitution, substitution_bytes, tile_of, width_of

MOST_THREADS = 512
"""Threads of a workgroup. Twice as many have half the registers each, and wait longer for each other."""
LEAST_THREADS = 64
REGISTER_WORDS = 64
"""Of a thread's rows of a block."""
LEAST_WIDTH = 4
"""Columns of the narrowest block."""
ORDERED = 32
"""Rows and columns of the tiles in which rows are brought in order."""
ORDER_THREADS = 256


def step_threads(dtype: str, rows: int, target: Target) -> int:
    """Threads of a workgroup that has a block of ``rows`` rows."""
    threads = min(power_above(max(rows, 1), LEAST_THREADS), target.workgroup_threads, MOST_THREADS)
    width = width_of(BY_NAME[dtype].itemsize)
    while (
        substitution_bytes(dtype, threads) + elimination_bytes(dtype, width, threads, target) > target.workgroup_bytes
    ):
        threads //= 2
    return threads


def block_width(dtype: str, rows: int, target: Target) -> int:
    """Columns of the block of ``rows`` rows that a workgroup factors in registers; 0 if there are too many rows."""
    itemsize = BY_NAME[dtype].itemsize
    held = power_above(-(-max(rows, 1) // step_threads(dtype, rows, target)))
    width = min(width_of(itemsize), REGISTER_WORDS * 4 // (itemsize * held))
    return width if width >= LEAST_WIDTH else 0


def lower_lu_step(
    op: Operation, alias: tuple[int, ...], target: Target, first: int, start: int, depth: int, pivot: bool
) -> Lowered:
    """Arguments: matrices (batch, m, n), whose rows stay where they are; their factors, of the same shape; orders
    (batch, m) of the rows. ``depth`` columns from ``start`` on are factored. Of the columns to their right the factors
    get as many rows, and the other rows are updated. Written are these, and where there is a next block of columns a
    new order, pivots (batch, n), infos (batch,); ``first`` is the place of the matrices in whole ones.
    """
    work, a = op.outputs[:2]
    batch, m, n = work.shape
    place, following = len(op.inputs), start + depth
    solves, factors = depth > 0, len(op.outputs) > 2
    kernel = MatrixKernel(a.dtype)
    kernel.add(fours(a.dtype))
    kernel.matrix("work", place, work)
    kernel.matrix("a", place + 1, a)
    rest = m - following
    threads, nominal = step_threads(a.dtype, rest, target), block_width(a.dtype, rest, target)
    width = min(nominal, min(m, n) - following)
    kernel.param("next", following)
    kernel.param("width", width)
    groups = 0
    if factors:
        for name, at in (("new_order", 2), ("pivots", 3), ("info", 4)):
            kernel.vector(name, place + at, op.outputs[at])
        for name, value in (("rows", rest), ("steps", width), ("first", first + following)):
            kernel.param(name, value)
        groups = batch
    if solves:
        kernel.vector("order", 2, op.inputs[2], written=False)
        tile_rows, tile_columns = tile_of(threads)
        tiles = max(1, -(-rest // tile_rows)), -(-(n - following - width) // tile_columns)
        for name, value in (("start", start), ("depth", depth), ("columns", n), ("rest", rest), ("panels", groups)):
            kernel.param(name, value)
        for name, value in zip(("down", "across"), tiles, strict=True):
            kernel.param(name, value)
        groups += batch * prod(tiles)
    depth_left = block_width(a.dtype, m - start, target)  # the block's columns, if it is not the last and narrower
    values = elimination(a.dtype, rest, nominal, threads, target, pivot)
    values |= substitution(depth_left, threads, target, unit=True, least_columns=nominal)
    text = render("linalg/lu_step", solves=solves, factors=factors, **values)
    return Lowered((kernel.launch_text("lu_step", text, groups, threads),))


def lower_lu_order(op: Operation, alias: tuple[int, ...], target: Target, lower: bool) -> Lowered:
    """Arguments: orders (batch, m) of the rows of matrices (batch, m, n), which become those of other matrices; of
    ``lower`` factors only what is below the diagonal is written.
    """
    order, a = op.inputs[:2]
    (ordered,) = op.outputs
    batch, m, n = a.shape
    kernel = MatrixKernel(a.dtype)
    kernel.vector("order", 0, order, written=False)
    kernel.matrix("a", 1, a, written=False)
    kernel.matrix("ordered", len(op.inputs), ordered)
    down, across = -(-m // ORDERED), -(-(min(m, n) if lower else n) // ORDERED)
    for name, value in (("rows", m), ("columns", n), ("down", down), ("across", across)):
        kernel.param(name, value)
    text = render("linalg/lu_order", threads=ORDER_THREADS, size=ORDERED, lower=lower)
    return Lowered((kernel.launch_text("lu_order", text, batch * down * across, ORDER_THREADS),))
