"""LU factorization of matrices that fit in the memory of a workgroup, and of panels of columns where they are."""

from __future__ import annotations

from math import isqrt

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import constant
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .matrices import MatrixKernel, power_above
from .substitution import PHASE, fours, turned

PANEL = 32
"""Columns of the largest panel."""
TILE = """\
fn load_tile(lid: u32) {
  for (var j = lid / LANES; j < P.columns; j += THREADS / LANES) {
    for (var i = lid % LANES; i < P.rows; i += LANES) { put(i, j, a_load(a_at(batch, i, j))); }
  }
  workgroupBarrier();
}
fn store_tile(lid: u32) {
  for (var j = lid / LANES; j < P.columns; j += THREADS / LANES) {
    for (var i = lid % LANES; i < P.rows; i += LANES) { a_store(a_at(batch, i, j), element(i, j)); }
  }
}"""
"""Brings a matrix into the workgroup's memory, and back; ``LANES`` threads have a column."""
STEPS_AT_ONCE = 32
"""Interchanges of rows that a workgroup does at once."""
MOST_HELD = 8
"""Elements that a thread holds meanwhile. With 32 SwiftShader compiles for minutes."""
SCANNED_ROWS = 32
"""Of the longest column in which each thread looks for the pivot by itself."""


def lower_lu(op: Operation, alias: tuple[int, ...], target: Target, first: int, pivot: bool) -> Lowered:
    """Arguments: matrices (batch, rows, columns), from row and column ``first`` on of whole ones, that become their
    factors; all their pivots (batch, n), infos (batch,).
    """
    a, pivots, info = op.outputs
    batch, rows, columns = a.shape
    kernel = MatrixKernel(a.dtype)
    kernel.matrix("a", len(op.inputs), a)
    kernel.vector("pivots", len(op.inputs) + 1, pivots)
    kernel.vector("info", len(op.inputs) + 2, info)
    for name, value in (("first", first), ("rows", rows), ("columns", columns), ("steps", min(rows, columns))):
        kernel.param(name, value)
    layout = registers(a.dtype, rows, columns, target)
    if layout is not None:
        threads, width = layout
        kernel.add(fours(a.dtype))
        text = render("linalg/lu_registers", **elimination(a.dtype, rows, width, threads, target, pivot))
        return Lowered((kernel.launch_text("lu", text, batch, threads),))
    threads = panel_threads(rows, columns, target)
    tiled = add_elements(kernel, a.dtype, rows, columns, threads, target)
    kernel.add(constant("PIVOT", pivot), constant("SCANNED", tiled and rows <= SCANNED_ROWS))
    kernel.add(constant("LANES", min(power_above(rows), threads)))
    return Lowered((kernel.launch("lu", batch, threads),))


def registers(dtype: str, rows: int, columns: int, target: Target) -> tuple[int, int] | None:
    """How a panel lies in a workgroup's registers: threads, and columns of each; None if it is too large for them."""
    threads, width = min(power_above(rows), target.workgroup_threads), power_above(columns, 4)
    words = power_above(-(-rows // threads)) * width * BY_NAME[dtype].itemsize // 4
    if columns > PANEL or words > (64 if threads <= 512 else 32):
        return None
    return threads, width


def elimination(dtype: str, rows: int, columns: int, threads: int, target: Target, pivot: bool) -> dict[str, object]:
    """The values of the template that eliminates ``columns`` columns in the registers of ``threads`` threads.

    The largest number of a column is looked for by subgroups, or some threads, and then among those of the ``groups``;
    or by each thread among all of them.
    """
    subgroup = subgroup_of(dtype, threads, target)
    groups = threads // subgroup if subgroup else threads if threads <= 32 else power_above(isqrt(threads))
    # Software adapters take the longer for a text the longer it is.
    phase = columns if target.software else min(columns, PHASE)
    return {
        "rows": power_above(-(-rows // threads)),
        "columns": columns,
        "threads": threads,
        "groups": groups,
        "subgroup": subgroup,
        "column_phase": phase,
        "turned": turned(columns, phase),
        "pivot": pivot,
    }


def subgroup_of(dtype: str, threads: int, target: Target) -> int:
    """Threads of the subgroups that look for pivots together; 0 where none do. They have no numbers of 64 bits."""
    subgroup = target.subgroup_size if dtype != "f64" else 0
    return subgroup if subgroup and threads % subgroup == 0 and threads <= subgroup**2 else 0


def elimination_bytes(dtype: str, columns: int, threads: int, target: Target) -> int:
    """Memory of a workgroup that eliminates."""
    itemsize, subgroup = BY_NAME[dtype].itemsize, subgroup_of(dtype, threads, target)
    if subgroup:
        return 2 * threads // subgroup * (columns * itemsize + 8)
    return columns * itemsize + (threads + power_above(isqrt(threads))) * (8 if dtype != "f64" else 16)


def panel_threads(rows: int, columns: int, target: Target) -> int:
    """Threads of a workgroup that eliminates."""
    most = min(target.workgroup_threads, 256 if rows <= 2048 else 1024)
    return min(max(32, power_above(rows * columns // 16)), most)


def add_elements(kernel: MatrixKernel, dtype: str, rows: int, columns: int, threads: int, target: Target) -> bool:
    """Declares ``element``, ``put``, ``barrier``, ``load_tile`` and ``store_tile`` for argument "a", in a workgroup's
    memory if it has room, beside two numbers for each thread; says whether it has. ``LANES`` is the caller's.
    """
    width, depth = tile_of(rows, columns)
    size, tiled = width * depth, is_tiled(dtype, rows, columns, threads, target)
    kernel.add("var<private> batch: u32;")
    if tiled:
        kernel.add(
            f"var<workgroup> tile: array<T, {size}>;",
            f"fn element(i: u32, j: u32) -> T {{ return tile[j * {width}u + i]; }}",
            f"fn put(i: u32, j: u32, value: T) {{ tile[j * {width}u + i] = value; }}",
            "fn barrier() { workgroupBarrier(); }",
            TILE,
        )
    else:
        kernel.add(
            "fn element(i: u32, j: u32) -> T { return a_load(a_at(batch, i, j)); }",
            "fn put(i: u32, j: u32, value: T) { a_store(a_at(batch, i, j), value); }",
            "fn barrier() { storageBarrier(); workgroupBarrier(); }",
            "fn load_tile(lid: u32) {}",
            "fn store_tile(lid: u32) {}",
        )
    return tiled


def tile_of(rows: int, columns: int) -> tuple[int, int]:
    """Elements between two columns of a matrix in a workgroup's memory, and columns there."""
    width = power_above(rows) + 1 if rows <= 32 else -(-rows // 8) * 8  # + 1: rows lie in all banks of the memory
    depth = power_above(columns) if columns <= 32 else -(-columns // 8) * 8
    return width, depth


def is_tiled(dtype: str, rows: int, columns: int, threads: int, target: Target) -> bool:
    """Whether a workgroup's memory has room for a matrix, beside two numbers for each thread."""
    width, depth = tile_of(rows, columns)
    return (width * depth + 2 * threads) * BY_NAME[dtype].itemsize <= target.workgroup_bytes


def fits(rows: int, columns: int, itemsize: int) -> bool:
    """Whether matrices are factored in one dispatch: they are as wide as a panel, or small."""
    return columns <= PANEL or rows * columns * itemsize <= 8192


def lower_interchange(
    op: Operation, alias: tuple[int, ...], target: Target, first: int, steps: int, backwards: bool
) -> Lowered:
    """Arguments: pivots (batch, n); rows (batch, rows, columns), from row ``first`` of whole matrices on, which are
    interchanged in place as ``steps`` pivots from ``first`` on say.
    """
    pivots, a = op.inputs
    batch, rows, columns = a.shape
    kernel = MatrixKernel(a.dtype)
    kernel.vector("pivots", 0, pivots, written=False)
    kernel.matrix("a", len(op.inputs), a)
    at_once = min(power_above(steps), STEPS_AT_ONCE)
    slots, width = 2 * at_once, min(power_above(columns), 32)
    threads = min(slots * width, target.workgroup_threads, 256)
    width = min(width, MOST_HELD * threads // slots)
    tiles = -(-columns // width)
    for name, value in (("first", first), ("rows", rows), ("columns", columns), ("steps", steps), ("tiles", tiles)):
        kernel.param(name, value)
    text = render(
        "linalg/interchange",
        steps=at_once,
        threads=threads,
        width=width,
        held=slots * width // threads,
        by_rows=a.strides[2] == 1,
        backwards=backwards,
    )
    return Lowered((kernel.launch_text("interchange", text, batch * tiles, threads),))


def lower_permutation(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: pivots (batch, steps), the rows (batch, rows) that they bring to each place."""
    pivots, rows = op.args
    kernel = MatrixKernel("f32")
    kernel.vector("pivots", 0, pivots, written=False)
    kernel.vector("rows", 1, rows)
    for name, value in (("batch", rows.shape[0]), ("rows", rows.shape[1]), ("steps", pivots.shape[1])):
        kernel.param(name, value)
    threads = min(64, target.workgroup_threads)
    return Lowered((kernel.launch("permutation", -(-rows.shape[0] // threads), threads),))
