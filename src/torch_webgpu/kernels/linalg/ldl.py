"""Factorization of symmetric and Hermitian indefinite matrices: small ones in a workgroup's memory, larger by columns.

Of larger ones each column is two dispatches: one workgroup a matrix chooses the pivot and interchanges, many eliminate.
Where a block of two rows begins is known to the device alone: the dispatches of its second column return at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import constant
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered, grid_for

from .lu import SCANNED_ROWS, add_elements, is_tiled, panel_threads
from .matrices import MatrixKernel, power_above

TILE = 32
"""Columns of a larger matrix that are a workgroup's."""
Part = Literal["whole", "choose", "eliminate"]


def lower_ldl(op: Operation, alias: tuple[int, ...], target: Target, hermitian: bool) -> Lowered:
    """Arguments: matrices (batch, n, n) whose lower triangles become the factors; pivots (batch, n), infos (batch,)."""
    batch, n, _ = op.outputs[0].shape
    if is_tiled(op.outputs[0].dtype, n, n, panel_threads(n, n, target), target):
        return Lowered((launch(op, target, hermitian, "whole"),))
    return Lowered(tuple(by_columns(op, target, hermitian)), (8 * batch,), (0,))


def by_columns(op: Operation, target: Target, hermitian: bool) -> Iterator[Launch]:
    """The launches of all columns: two kernels, with the number of the column."""
    parts = [launch(op, target, hermitian, "choose"), launch(op, target, hermitian, "eliminate")]
    for column in range(op.outputs[0].shape[1]):
        for part in parts:
            yield replace(part, values=(*part.values[:-1], column))


def launch(op: Operation, target: Target, hermitian: bool, part: Part) -> Launch:
    """The last parameter of a part is the column."""
    a, pivots, info = op.outputs
    batch, n, _ = a.shape
    kernel, first, threads = MatrixKernel(a.dtype), len(op.inputs), panel_threads(n, n, target)
    kernel.matrix("a", first, a)
    if part != "eliminate":
        kernel.vector("pivots", first + 1, pivots)
        kernel.vector("info", first + 2, info)
    if part != "whole":
        kernel.binding(Binding("state", "u32", "read_write" if part == "choose" else "read"), len(op.args))
    add_elements(kernel, a.dtype, n, n, threads, target)
    lanes = TILE if part == "eliminate" else min(power_above(n), threads)
    kernel.add(constant("HERMITIAN", hermitian and a.dtype == "c64"), constant("SCANNED", n <= SCANNED_ROWS))
    kernel.add(constant("THREADS", threads), constant("LANES", lanes))
    tiles = -(-n // TILE) if part == "eliminate" else 1
    for name, value in (("rows", n), ("columns", n), ("groups", batch * tiles), ("tiles", tiles), ("first", 0)):
        kernel.param(name, value)
    text = render("linalg/ldl", part=part, threads=threads)
    return kernel.build(f"linalg_ldl_{part}", [text], threads, grid_for(batch * tiles * WORKGROUP))


def lower_ldl_columns(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: pivots (batch, n); factors (batch, n, n), which become triangles in place."""
    pivots, a = op.inputs
    batch, n, _ = a.shape
    kernel = MatrixKernel(a.dtype)
    kernel.vector("pivots", 0, pivots, written=False)
    kernel.matrix("a", len(op.inputs), a)
    kernel.param("batch", batch)
    kernel.param("size", n)
    threads = min(64, target.workgroup_threads)
    return Lowered((kernel.launch("ldl_columns", -(-batch * n // threads), threads),))
