"""QR factorization of matrices by panels that lie in a workgroup's registers, and products with blocks of reflections.

A panel is one dispatch, which gives the triangle t of its block of reflections, too; another multiplies the columns
beside it by ``1 - v t vᴴ``. In that one a workgroup has few columns and all rows, as ``vᴴ c`` is a sum over rows: what
is multiplied is read and written once, in one dispatch, where products of matrices take three and read it twice, and
columns by eights are a workgroup for each multiprocessor at 1,024. It does not factor the next panel, too, as LU's
steps do: alone, one workgroup would take about as long for that panel's product as that dispatch does.
"""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .matrices import MatrixKernel, power_above
from .substitution import PHASE, fours, turned, width_of

REGISTER_WORDS = 64
"""Of a thread's rows of a panel. Sums of a row's products take half as many again."""
MOST_THREADS = 512
"""Threads of a workgroup that has a panel."""
LEAST_THREADS = 32
LEAST_WIDTH = 4
"""Columns of the narrowest panel."""
APPLIED_WORDS = 32
"""Of a thread's rows of the columns that a block of reflections is applied to, while that needs no more threads than
``MOST_APPLYING``.
"""
MOST_APPLYING = 256
APPLIED_COLUMNS = 8
"""Columns of float32 that a workgroup applies a block of reflections to."""
SUMS = 32
"""Numbers of float32 that are summed over threads at once, where a block is applied."""
GROUPS = 8
"""Sums of a workgroup's threads that are formed side by side."""
ROWS_AT_ONCE = 32
"""Rows of a block of reflections in a workgroup's memory."""


def panel_layout(dtype: str, rows: int, target: Target) -> tuple[int, int]:
    """Threads of a workgroup that has a panel of ``rows`` rows, and the columns that their registers have room for; no
    columns if there are too many rows.
    """
    itemsize = BY_NAME[dtype].itemsize
    width = width_of(itemsize)
    held = REGISTER_WORDS * 4 // (itemsize * width)
    threads = min(power_above(-(-rows // held), LEAST_THREADS), target.workgroup_threads, MOST_THREADS)
    while panel_bytes(dtype, width, threads) > target.workgroup_bytes:
        threads //= 2
    width = min(width, REGISTER_WORDS * 4 // (itemsize * power_above(-(-rows // threads))))
    return threads, width if width >= LEAST_WIDTH else 0


def panel_bytes(dtype: str, columns: int, threads: int) -> int:
    """Memory of a workgroup that factors a panel."""
    count = columns * (columns + 3) + 3 + GROUPS * (columns + 1) + threads * (4 * chunk_of(dtype) + 1)
    return count * BY_NAME[dtype].itemsize


def chunk_of(dtype: str) -> int:
    """Fours of each thread that are in a workgroup's memory at once."""
    return 2 if BY_NAME[dtype].itemsize <= 4 else 1


def reduction(dtype: str, numbers: int, threads: int) -> dict[str, int]:
    """The values of the template that sums ``numbers`` numbers of each thread. Exchanges within subgroups take two
    thirds of the time on an H200, but through Tint some of these sums were wrong there.
    """
    return {"numbers": numbers, "threads": threads, "groups": GROUPS, "chunk": min(chunk_of(dtype), numbers // 4)}


def panel_runs(rows: int, count: int, dtype: str, target: Target) -> list[tuple[int, int, int]]:
    """The panels of which matrices of ``rows`` rows have ``count`` reflections: where those of one width begin, that
    width, and how many they are. The last panel may be narrower.
    """
    first = 0
    runs: list[tuple[int, int, int]] = []
    while first < count:
        width = panel_layout(dtype, rows - first, target)[1]
        if runs and runs[-1][1] == width:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((first, width, 1))
        first += width
    return runs


def panels(rows: int, count: int, dtype: str, target: Target) -> list[tuple[int, int]]:
    """Where each of them begins, and how many reflections it has."""
    found = []
    for start, width, number in panel_runs(rows, count, dtype, target):
        firsts = range(start, start + width * number, width)
        found += [(first, min(width, count - first)) for first in firsts]
    return found


def lower_qr_panel(op: Operation, alias: tuple[int, ...], target: Target, first: int) -> Lowered:
    """Arguments: panels (batch, rows, columns), from row and column ``first`` on of whole matrices, that become their
    triangles and vectors; all factors tau (batch, n); the triangles t of all blocks of reflections side by side,
    (batch, width of the widest, n).
    """
    a, tau, t = op.outputs
    batch, rows, columns = a.shape
    kernel = MatrixKernel(a.dtype)
    kernel.add(fours(a.dtype))
    for name, at, spec in (("a", 0, a), ("t", 2, t)):
        kernel.matrix(name, len(op.inputs) + at, spec)
    kernel.vector("tau", len(op.inputs) + 1, tau)
    for name, value in (("first", first), ("rows", rows), ("width", columns), ("steps", min(rows, columns))):
        kernel.param(name, value)
    threads, _ = panel_layout(a.dtype, rows, target)
    width = power_above(columns, 4)
    values: dict[str, object] = {**reduction(a.dtype, width, threads)}
    phase = min(width, PHASE)
    values |= {"phase": phase, "turned": turned(width, phase)}
    text = render("linalg/qr_panel", columns=width, rows=power_above(-(-rows // threads)), **values)
    return Lowered((kernel.launch_text("qr_panel", text, batch, threads),))


def lower_qr_apply(
    op: Operation,
    alias: tuple[int, ...],
    target: Target,
    first: int,
    depth: int,
    adjoint: bool,
    conjugated: bool = False,
) -> Lowered:
    """Arguments: vectors (batch, rows, …), from row and column ``first`` on of whole matrices, of which ``depth`` are a
    block; the triangles t of all blocks; what is multiplied, (batch, rows, columns), or its conjugate. If that is
    missing, it is what lies beside the block.
    """
    a, t = op.inputs[:2]
    is_beside = len(op.inputs) == 2
    (c,) = op.outputs
    batch, rows, columns = c.shape
    kernel = MatrixKernel(c.dtype)
    kernel.add(fours(c.dtype))
    kernel.matrix("t", 1, t, written=False)
    if is_beside:
        kernel.matrix("a", len(op.inputs), c)
    else:
        kernel.matrix("a", 0, a, written=False)
        kernel.matrix("c", len(op.inputs), c)
    column = depth if is_beside else 0
    nominal = power_above(depth, 4)
    threads, tile, held = applied_layout(c.dtype, rows, nominal, target)
    tiles = -(-(columns - column) // tile)
    for name, value in (("first", first), ("depth", depth), ("rows", rows), ("column", column), ("columns", columns)):
        kernel.param(name, value)
    kernel.param("tiles", tiles)
    at_once = sums_of(c.dtype, nominal, tile) // tile
    text = render(
        "linalg/qr_apply",
        depth=nominal,
        tile=tile,
        rows=held,
        at_once=at_once,
        c="a" if is_beside else "c",
        adjoint=adjoint,
        conjugated=conjugated,
        **reduction(c.dtype, at_once * tile, threads) | {"chunk": 1},
    )
    return Lowered((kernel.launch_text("qr_apply", text, batch * tiles, threads),))


def applied_layout(dtype: str, rows: int, depth: int, target: Target) -> tuple[int, int, int]:
    """Threads of a workgroup that applies a block of reflections, its columns, and the rows of a thread."""
    itemsize = BY_NAME[dtype].itemsize
    tile = APPLIED_COLUMNS * 4 // itemsize
    held = APPLIED_WORDS * 4 // (itemsize * tile)
    most = min(target.workgroup_threads, MOST_APPLYING)
    if -(-rows // most) * tile * itemsize > REGISTER_WORDS * 4:
        most = min(target.workgroup_threads, MOST_THREADS)
    threads = min(power_above(-(-rows // held), LEAST_THREADS), most)
    while applied_bytes(dtype, depth, tile, threads) > target.workgroup_bytes:
        threads //= 2
    held = power_above(-(-rows // threads))
    return threads, max(4, min(tile, REGISTER_WORDS * 4 // (itemsize * held))), held


def sums_of(dtype: str, depth: int, tile: int) -> int:
    """Numbers that are summed over threads at once."""
    return min(SUMS * 4 // BY_NAME[dtype].itemsize, depth * tile)


def applied_bytes(dtype: str, depth: int, tile: int, threads: int) -> int:
    """Memory of a workgroup that applies a block of reflections."""
    return ((GROUPS + 2) * depth * tile + depth * depth + 4 * threads) * BY_NAME[dtype].itemsize


def lower_qr_triangles(
    op: Operation, alias: tuple[int, ...], target: Target, first: int, width: int, blocks: int
) -> Lowered:
    """Arguments: vectors (batch, m, …) and all factors tau (batch, n) of reflections, of which those from ``first`` on
    are ``blocks`` of ``width``; the triangles t of all blocks, of which these are written.
    """
    a, tau = op.inputs[:2]
    (t,) = op.outputs
    batch, rows, _ = a.shape
    count = tau.shape[1]
    kernel = MatrixKernel(t.dtype)
    kernel.add(fours(t.dtype))
    kernel.matrix("a", 0, a, written=False)
    kernel.vector("tau", 1, tau, written=False)
    kernel.matrix("t", len(op.inputs), t)
    for name, value in (("first", first), ("rows", rows), ("count", count), ("blocks", blocks)):
        kernel.param(name, value)
    depth = power_above(min(width, count), 4)
    threads = max(LEAST_THREADS, depth * depth // 4)
    text = render("linalg/qr_triangles", depth=depth, at_once=ROWS_AT_ONCE, threads=threads)
    return Lowered((kernel.launch_text("qr_triangles", text, batch * blocks, threads),))
