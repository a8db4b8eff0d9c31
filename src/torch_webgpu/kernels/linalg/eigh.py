"""The Hermitian eigenproblem: small matrices in workgroup memory, a workgroup each."""

from __future__ import annotations

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import WORKGROUP, Lowered, grid_for

from .jacobi import SMALLEST_COSINE, SWEEPS, Rotations, bits_of
from .matrices import MatrixKernel

A, VALUES, VECTORS = 0, 1, 2
"""Bindings: the arguments."""


def small(dtype: str, n: int, vectors: bool) -> Rotations:
    """The rotations of matrices of ``n`` rows in one piece."""
    return Rotations(dtype, n + n % 2, n if vectors else 0)


def lower_eigh(op: Operation, alias: tuple[int, ...], target: Target, upper: bool) -> Lowered:
    """Arguments: matrices (batch, n, n), eigenvalues (batch, n) and, if they are wanted, eigenvectors (batch, n, n)."""
    a = op.args[A]
    batch, n, _ = a.shape
    rotations = small(a.dtype, n, len(op.args) > VECTORS)
    kernel = MatrixKernel(a.dtype)
    kernel.matrix("a", A, a, written=False)
    kernel.vector("values", VALUES, op.args[VALUES])
    if rotations.rows:
        kernel.matrix("vectors", VECTORS, op.args[VECTORS])
    kernel.param("batch", batch)
    main = render(
        "linalg/eigh",
        size=n,
        n=rotations.n,
        rows=rotations.rows,
        width=rotations.width,
        threads=rotations.threads,
        sweeps=SWEEPS,
        converged=bits_of(SMALLEST_COSINE[a.dtype]),
    )
    texts = [render("linalg/hermitian", upper=upper), rotations.text(), main]
    return Lowered((kernel.build("linalg_eigh", texts, rotations.threads, grid_for(batch * WORKGROUP)),))
