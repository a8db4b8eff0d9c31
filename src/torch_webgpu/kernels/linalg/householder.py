"""QR factorization of matrices that fit in the memory of a workgroup, and of panels; blocks of reflections."""

from __future__ import annotations

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import constant
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Lowered

from .lu import add_elements, panel_threads
from .matrices import MatrixKernel, power_above


def lower_householder(op: Operation, alias: tuple[int, ...], target: Target, first: int) -> Lowered:
    """Arguments: matrices (batch, rows, columns), from row and column ``first`` on of whole ones, that become their
    triangles and vectors; all their factors tau (batch, n).
    """
    a, tau = op.outputs
    batch, rows, columns = a.shape
    kernel = MatrixKernel(a.dtype)
    threads = panel_threads(rows, columns, target)
    kernel.matrix("a", len(op.inputs), a)
    kernel.vector("tau", len(op.inputs) + 1, tau)
    add_elements(kernel, a.dtype, rows, columns, threads, target)
    kernel.add(constant("LANES", max(1, threads // power_above(columns))))
    for name, value in (("first", first), ("rows", rows), ("columns", columns), ("steps", min(rows, columns))):
        kernel.param(name, value)
    return Lowered((kernel.launch("householder", batch, threads),))


def lower_reflections(op: Operation, alias: tuple[int, ...], target: Target, first: int) -> Lowered:
    """Arguments: products of vectors (batch, n, n), all their factors tau (batch, …), of which those from ``first`` on
    are meant; the triangle (batch, n, n).
    """
    products, tau, t = op.args
    n = products.shape[1]
    kernel = MatrixKernel(t.dtype)
    kernel.matrix("products", 0, products, written=False)
    kernel.vector("tau", 1, tau, written=False)
    kernel.matrix("t", 2, t)
    size = power_above(n, 4)
    kernel.add(constant("SIZE", size))
    kernel.param("first", first)
    kernel.param("size", n)
    return Lowered((kernel.launch("reflections", products.shape[0], max(32, size)),))
