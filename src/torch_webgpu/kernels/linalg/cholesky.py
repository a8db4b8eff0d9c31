"""Cholesky factorization of blocks that fit in the memory of a workgroup."""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import constant
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .matrices import MatrixKernel, power_above

BLOCK = 32
"""Rows of the largest block."""


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
    threads = min(max(32, rows * rows // 4), target.workgroup_threads, 256)
    return Lowered((kernel.launch("cholesky", a.shape[0], threads),))
