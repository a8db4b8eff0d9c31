"""Substitution with triangular blocks that fit in the memory of a workgroup, and what rows that are left lose by it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .matrices import MatrixKernel, power_above
from .substitution import fours, substitution, tile_of, width_of

BLOCK = 32
"""Rows of the largest block: it and as many columns of complex64 are 16 KiB."""
STEP_THREADS = 256
"""Of a workgroup of a step: it has a tile of 32 by 32."""


@dataclass(frozen=True)
class Triangle:
    """Which triangle of a matrix is solved with; whether its diagonal is ones, and it is conjugated."""

    upper: bool = False
    unit: bool = False
    conjugated: bool = False


def lower_triangular_solve(op: Operation, alias: tuple[int, ...], target: Target, triangle: Triangle) -> Lowered:
    """Arguments: triangles (batch, n, n) of at most BLOCK rows, right-hand sides (batch, n, columns) that become the
    solutions. Both may lie in one storage.
    """
    a, x = op.inputs
    batch, n, columns = x.shape
    shared = alias[0] == alias[1]
    kernel = MatrixKernel(a.dtype)
    kernel.matrix("x", len(op.inputs), x)
    if shared:
        kernel.locate("a", 0, a)
        kernel.add("fn a_load(i: u32) -> T { return x_load(i); }")
    else:
        kernel.matrix("a", 0, a, written=False)
    size, width = power_above(n, 4), min(power_above(columns), BLOCK)
    tiles = -(-columns // width)
    for name, value in (("size", n), ("columns", columns), ("tiles", tiles)):
        kernel.param(name, value)
    threads = BLOCK if target.software else min(max(BLOCK, size * width // 4), target.workgroup_threads)
    text = render(
        "linalg/triangular_solve",
        size=size,
        width=width,
        threads=threads,
        a_by_rows=a.strides[2] == 1,
        x_by_rows=x.strides[2] == 1,
        **asdict(triangle),
    )
    return Lowered((kernel.launch_text("triangular_solve", text, batch * tiles, threads),))


def lower_triangular_step(
    op: Operation, alias: tuple[int, ...], target: Target, start: int, triangle: Triangle
) -> Lowered:
    """Arguments: triangles (batch, n, n); right-hand sides (batch, n, columns), and where their solutions go. The block
    of rows from ``start`` on, in the order of substitution, is solved, and those after it lose its product.
    """
    a, (work, x) = op.inputs[0], op.outputs
    batch, n, columns = x.shape
    kernel = MatrixKernel(a.dtype)
    kernel.add(fours(a.dtype))
    kernel.matrix("a", 0, a, written=False)
    kernel.matrix("work", len(op.inputs), work)
    kernel.matrix("x", len(op.inputs) + 1, x)
    width = width_of(BY_NAME[a.dtype].itemsize)
    following = min(start + width, n)
    tile_rows, tile_columns = tile_of(STEP_THREADS)
    down, across = max(1, -(-(n - following) // tile_rows)), -(-columns // tile_columns)
    for name, value in (("size", n), ("columns", columns), ("start", start), ("depth", following - start)):
        kernel.param(name, value)
    for name, value in (("next", following), ("rest", n - following), ("down", down), ("across", across)):
        kernel.param(name, value)
    values = substitution(
        width,
        STEP_THREADS,
        target,
        unit=triangle.unit,
        triangle_by_rows=a.strides[2] == 1,
        left_by_rows=a.strides[2] == 1,
        block_by_rows=x.strides[2] == 1,
    )
    text = render("linalg/triangular_step", upper=triangle.upper, conjugated=triangle.conjugated, **values)
    return Lowered((kernel.launch_text("triangular_step", text, batch * down * across, STEP_THREADS),))
