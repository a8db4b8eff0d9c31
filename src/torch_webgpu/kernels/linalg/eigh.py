"""The Hermitian eigenproblem: small matrices in workgroup memory, a workgroup each; larger ones in blocks."""

from __future__ import annotations

from dataclasses import replace

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import WORKGROUP, Lowered, grid_for

from .jacobi import SMALLEST_COSINE, SWEEPS, Rotations, bits_of
from .jacobi_blocks import Blocks
from .matrices import MatrixKernel

A, VALUES, VECTORS = 0, 1, 2
"""Bindings: the arguments."""


def small(dtype: str, n: int, vectors: bool) -> Rotations:
    """The rotations of matrices of ``n`` rows in one piece."""
    return Rotations(dtype, n + n % 2, n if vectors else 0)


def is_small(dtype: str, n: int, target: Target) -> bool:
    """Whether matrices of ``n`` rows are decomposed in one piece, with their eigenvectors."""
    return small(dtype, n, True).fits(target)


def lower_eigh(op: Operation, alias: tuple[int, ...], target: Target, upper: bool) -> Lowered:
    """Arguments: matrices (batch, n, n), eigenvalues (batch, n) and, if they are wanted, eigenvectors (batch, n, n)."""
    a = op.args[A]
    batch, n, _ = a.shape
    vectors = len(op.args) > VECTORS
    rotations = small(a.dtype, n, vectors)
    if not is_small(a.dtype, n, target):
        return in_blocks(op, upper, vectors)
    kernel = MatrixKernel(a.dtype)
    kernel.matrix("a", A, a, written=False)
    kernel.vector("values", VALUES, op.args[VALUES])
    if rotations.rows:
        kernel.matrix("vectors", VECTORS, op.args[VECTORS])
    kernel.param("batch", batch)
    main = render(
        "linalg/eigh",
        size=n,
        **rotations.layout,
        sweeps=SWEEPS,
        converged=bits_of(SMALLEST_COSINE[a.dtype]),
    )
    texts = [render("linalg/hermitian", upper=upper), rotations.text(), main]
    return Lowered((kernel.build("linalg_eigh", texts, rotations.threads, grid_for(batch * WORKGROUP)),))


def in_blocks(op: Operation, upper: bool, vectors: bool) -> Lowered:
    a = op.args[A]
    element = render("linalg/hermitian", upper=upper)
    blocks = Blocks(op.args, op.id, element, False, vectors, bits_of(SMALLEST_COSINE[a.dtype]))
    lowered = blocks.lowered()
    if not vectors:
        return lowered
    return replace(lowered, launches=(*lowered.launches, blocks.end("right", VECTORS, blocks.padded, a.shape[1])))
