"""Cholesky factorization: of blocks that fit in the memory of a workgroup, and of what is below and beside them."""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import constant
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .matrices import MatrixKernel, power_above

BLOCK = 32
"""Rows of the largest block, and of the tiles of what is left of a matrix."""
THREADS = 256


def lower_cholesky(op: Operation, alias: tuple[int, ...], target: Target, first: int) -> Lowered:
    """Arguments: blocks (batch, size, size) from row ``first`` on of matrices, whose lower triangles are factored in
    place; infos (batch,).
    """
    a, info = op.outputs
    kernel = MatrixKernel(a.dtype)
    size = a.shape[1]
    rows = power_above(size, 4)
    assert rows * rows * BY_NAME[a.dtype].itemsize <= target.workgroup_bytes
    kernel.add(constant("SIZE", rows))
    kernel.matrix("a", len(op.inputs), a)
    kernel.vector("info", len(op.inputs) + 1, info)
    kernel.param("first", first)
    kernel.param("size", size)
    threads = min(max(32, rows * rows // 4), target.workgroup_threads, THREADS)
    return Lowered((kernel.launch("cholesky", a.shape[0], threads),))


def width_of(itemsize: int) -> int:
    """Columns of a step: three blocks of them, which a workgroup has, fit in the 16 KiB that WebGPU promises."""
    return BLOCK if itemsize <= 4 else BLOCK // 2


def lower_cholesky_step(op: Operation, alias: tuple[int, ...], target: Target, first: int) -> Lowered:
    """Arguments: what is left of matrices, and where their factors go, both (batch, size, size); infos (batch,). The
    first columns of the factors have a diagonal block that is factored already, at row ``first`` of whole matrices.
    Afterwards they are complete, the next diagonal block is factored, and the rest is what is left.
    """
    work, a, info = op.outputs
    batch, size, _ = work.shape
    width = width_of(BY_NAME[a.dtype].itemsize)
    kernel = MatrixKernel(a.dtype)
    for place, (name, spec) in enumerate((("work", work), ("a", a)), len(op.inputs)):
        kernel.matrix(name, place, spec)
    kernel.vector("info", len(op.inputs) + 2, info)
    tiles = -(-(size - width) // BLOCK)
    for name, value in (("first", first + width), ("size", size), ("tiles", tiles)):
        kernel.param(name, value)
    text = render("linalg/cholesky_step", width=width)
    return Lowered((kernel.launch_text("cholesky_step", text, batch * tiles**2, THREADS),))
