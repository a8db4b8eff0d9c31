"""The singular value decomposition: small matrices in workgroup memory, a workgroup each; larger ones in blocks.

Kernels decompose matrices (batch, m, n) with m >= n. A wide one is transposed: then its left singular vectors are the
rows of Vh, and the conjugates of its right ones the columns of U.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding
from torch_webgpu.wgsl.launch import ERRORS, WORKGROUP, Launch, Lowered, grid_for

from .jacobi import ITEM_BYTES, SMALLEST_COSINE, SWEEPS, Rotations, bits_of, sizes
from .jacobi_blocks import Blocks
from .matrices import MatrixKernel

A, VALUES, LEFT, RIGHT = 0, 1, 2, 3
"""Bindings: the arguments."""
ELEMENT = "fn element(matrix: u32, i: u32, j: u32) -> T { return a_load(a_at(matrix, i, j)); }"
COMPLETE_THREADS = 256
NULL = {"f32": 1e-15, "c64": 1e-15, "f64": 1e-150}
"""Singular values that are so small beside the largest one have vectors that nothing is known of: the squares of their
columns underflow."""


def small(dtype: str, m: int, n: int, vectors: bool) -> Rotations:
    """The rotations of matrices of ``m`` >= ``n`` rows in one piece."""
    return Rotations(dtype, n + n % 2, m + n if vectors else m, relative=True, more=n)


def orthogonal(dtype: str, m: int) -> float:
    """The cosine of two columns of ``m`` elements that is a rounding error."""
    return 4 * SMALLEST_COSINE[dtype] * sqrt(m)


def turned(spec: Spec) -> Spec:
    """Matrices (batch, m, n) as (batch, n, m)."""
    (batch, m, n), (s_batch, s_m, s_n) = spec.shape, spec.strides
    return spec._replace(shape=(batch, n, m), strides=(s_batch, s_n, s_m))


def lower_svd(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: matrices (batch, m, n) with m >= n, singular values (batch, n) and, if they are wanted, left singular
    vectors (batch, m, n or m) and the conjugates of right ones (batch, n, n).
    """
    a = op.args[A]
    batch, m, n = a.shape
    vectors = len(op.args) > LEFT
    rotations = small(a.dtype, m, n, vectors)
    if not rotations.fits(target):
        return in_blocks(op, vectors)
    kernel = MatrixKernel(a.dtype)
    kernel.matrix("a", A, a, written=False)
    kernel.vector("values", VALUES, op.args[VALUES])
    if vectors:
        kernel.matrix("left", LEFT, op.args[LEFT])
        kernel.matrix("right", RIGHT, op.args[RIGHT])
    kernel.binding(ERROR_FLAGS, ERRORS)
    kernel.param("op", op.id)
    kernel.param("batch", batch)
    main = render(
        "linalg/svd",
        height=m,
        size=n,
        **rotations.layout,
        sweeps=SWEEPS,
        converged=bits_of(orthogonal(a.dtype, m)),
    )
    launch = kernel.build("linalg_svd", [rotations.text(), main], rotations.threads, grid_for(batch * WORKGROUP))
    if not vectors:
        return Lowered((launch,))
    return with_basis(op, Lowered((launch,)))


def in_blocks(op: Operation, vectors: bool) -> Lowered:
    _, m, n = op.args[A].shape
    blocks = Blocks(op.args, op.id, ELEMENT, True, vectors, bits_of(orthogonal(op.args[A].dtype, m)))
    lowered = blocks.lowered()
    if not vectors:
        return lowered
    ends = blocks.end("left", LEFT, 0, m), blocks.end("right", RIGHT, blocks.padded, n)
    return with_basis(op, replace(lowered, launches=(*lowered.launches, *ends)))


def with_basis(op: Operation, lowered: Lowered) -> Lowered:
    """And the launch that makes an orthonormal basis of the left singular vectors."""
    left, temporaries = op.args[LEFT], lowered.temporaries
    launch = completed(op, len(op.args) + len(temporaries))
    more = left.shape[0] * left.shape[2] * ITEM_BYTES[left.dtype]
    return replace(lowered, launches=(*lowered.launches, launch), temporaries=(*temporaries, more))


def completed(op: Operation, temporary: int) -> Launch:
    """``temporary``: the binding of a number for each left singular vector."""
    left = op.args[LEFT]
    batch, m, width = left.shape
    kernel = MatrixKernel(left.dtype)
    kernel.vector("values", VALUES, op.args[VALUES], written=False)
    kernel.matrix("left", LEFT, left)
    kernel.binding(Binding("along", left.dtype, "read_write"), temporary)
    kernel.param("batch", batch)
    kernel.param("height", m)
    kernel.param("size", op.args[VALUES].shape[1])
    kernel.param("width", width)
    text = render("linalg/svd_complete", threads=COMPLETE_THREADS, null=NULL[left.dtype])
    grid = grid_for(batch * WORKGROUP)
    return kernel.build("linalg_svd_complete", [sizes(left.dtype), text], COMPLETE_THREADS, grid)
