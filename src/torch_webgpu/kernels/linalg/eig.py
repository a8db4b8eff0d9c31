"""The eigenproblem of general matrices as LAPACK's geev solves it: balancing, Hessenberg's form, QR iterations.

One workgroup has a matrix. How many iterations a matrix takes is known to the device alone: as many dispatches of them
are recorded as it may need, each of a bounded number of steps, and those after the last needed one return at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, grid_for

from .jacobi import UNUSED_BYTES, sizes
from .matrices import MatrixKernel, power_above

A, VALUES, VECTORS = 0, 1, 2
"""Bindings: the arguments."""
STATES = 8
"""Words of a matrix's state: bits of its largest element, what scales its eigenvalues back, the first of the rows that
balancing left and the one after their last, the one after the last row that is iterated, sweeps since the last
deflation, all sweeps.
"""
TILED_ROWS = 32
"""Of the largest matrix that is iterated in a workgroup's memory."""
SWEEPS = 10
"""For each row, at most; matrices take about two."""
FEWEST_SWEEPS = 300
"""What small matrices may take."""
STEPS = 4096
"""Of all sweeps of a dispatch, for matrices of up to that number of rows: some milliseconds."""
REACH = 40
"""Matrices are scaled if their largest element is beyond two to this power, or below its inverse: LAPACK's bounds."""
BALANCING_PASSES, MOST_HALVINGS = 32, 100
Step = Literal["substitute", "product", "normalise"]


@dataclass(frozen=True)
class Eigenproblem:
    """Matrices of ``size`` rows, and how their parts lie in memory; ``op``: the operation's number."""

    args: tuple[Spec, ...]
    op: int
    target: Target

    @property
    def dtype(self) -> str:
        return self.args[A].dtype

    @property
    def complex(self) -> bool:
        return self.dtype == "c64"

    @property
    def vectors(self) -> bool:
        """Whether eigenvectors are wanted."""
        return len(self.args) > VECTORS

    @property
    def batch(self) -> int:
        return self.args[A].shape[0]

    @property
    def size(self) -> int:
        return self.args[A].shape[1]

    @property
    def threads(self) -> int:
        return min(power_above(self.size, 32), 256, self.target.workgroup_threads)

    @property
    def width(self) -> int:
        """From a column to the next one in a workgroup's memory: odd, so that rows lie in all of its banks."""
        return power_above(self.size) + 1

    @property
    def matrices(self) -> tuple[str, ...]:
        return ("h", "z") if self.vectors else ("h",)

    @property
    def tiled(self) -> bool:
        """Whether a matrix is iterated in a workgroup's memory."""
        elements = self.width * (self.width - 1) * len(self.matrices)
        room = self.target.workgroup_bytes - UNUSED_BYTES - 4 * self.threads
        return self.size <= TILED_ROWS and elements * BY_NAME[self.dtype].itemsize <= room

    @property
    def most(self) -> int:
        """Sweeps of a matrix."""
        return max(FEWEST_SWEEPS, SWEEPS * self.size)

    @property
    def steps(self) -> int:
        """Of a dispatch."""
        return max(STEPS, self.size) if self.size > TILED_ROWS else self.most * self.size

    @property
    def dispatches(self) -> int:
        return -(-self.most * self.size // self.steps) + (self.size > TILED_ROWS)

    @property
    def temporaries(self) -> dict[str, tuple[str, int]]:
        """Names and dtypes of what lies between the kernels, and bytes."""
        square, line = self.batch * self.size**2, self.batch * self.size
        item = BY_NAME[self.dtype].itemsize
        found = {"h": (self.dtype, square * item), "state": ("u32", self.batch * STATES * 4)}
        found |= {"places": ("u32", line * 4), "scales": ("f32", line * 4)}
        return found | ({"z": (self.dtype, square * item), "x": ("c64", square * 8)} if self.vectors else {})

    def kernel(self, dtype: str, *names: str) -> MatrixKernel:
        """A kernel with some temporaries, those whose name ends in "=" to be written."""
        kernel = MatrixKernel(dtype)
        temporaries = list(self.temporaries)
        for text in names:
            name = text.rstrip("=")
            access: Literal["read", "read_write"] = "read" if text == name else "read_write"
            dtype = self.temporaries[name][0]
            kernel.binding(Binding(name, dtype, access), len(self.args) + temporaries.index(name))
        kernel.param("size", self.size)
        return kernel

    def memory(self, names: tuple[str, ...], tiled: bool) -> str:
        return render("linalg/eig_memory", names=names, tiled=tiled, width=self.width, threads=self.threads)

    def launches(self) -> Iterator[Launch]:
        yield self.balance()
        yield self.hessenberg()
        yield from [self.iterate()] * self.dispatches
        yield self.values()
        if self.vectors:
            for step in ("substitute", "product", "normalise"):
                yield self.to_vectors(step)

    def balance(self) -> Launch:
        kernel = self.kernel(self.dtype, "h=", "state=", "places=", "scales=")
        kernel.matrix("a", A, self.args[A], written=False)
        kernel.add(sizes(self.dtype))
        text = render(
            "linalg/eig_balance",
            threads=self.threads,
            states=STATES,
            reach=REACH,
            passes=BALANCING_PASSES,
            most_halvings=MOST_HALVINGS,
        )
        return self.of_matrices(kernel, "balance", [self.memory(("h",), False), text])

    def hessenberg(self) -> Launch:
        kernel = self.kernel(self.dtype, "state", *(f"{name}=" for name in self.matrices))
        text = render("linalg/eig_hessenberg", threads=self.threads, states=STATES, vectors=self.vectors)
        memory = self.memory(self.matrices, self.tiled)
        return self.of_matrices(kernel, "hessenberg", [memory, render("linalg/eig_reflect"), text])

    def iterate(self) -> Launch:
        kernel = self.kernel(self.dtype, "state=", *(f"{name}=" for name in self.matrices))
        kernel.param("most", self.most)
        kernel.param("budget", self.steps)
        text = render(
            "linalg/eig_iterate", threads=self.threads, states=STATES, vectors=self.vectors, complex=self.complex
        )
        memory = self.memory(self.matrices, self.tiled)
        return self.of_matrices(kernel, "iterate", [memory, render("linalg/eig_reflect"), text])

    def values(self) -> Launch:
        kernel = self.kernel(self.dtype, "state", *(f"{name}=" for name in self.matrices))
        kernel.vector("values", VALUES, self.args[VALUES])
        kernel.binding(ERROR_FLAGS, ERRORS)
        kernel.param("op", self.op)
        text = render(
            "linalg/eig_values", threads=self.threads, states=STATES, vectors=self.vectors, complex=self.complex
        )
        return self.of_matrices(kernel, "values", [self.memory(self.matrices, False), text])

    def to_vectors(self, step: Step) -> Launch:
        bound = {"substitute": ["h", "x="], "product": ["z", "x", "places", "scales"], "normalise": []}
        kernel = self.kernel("c64", *bound[step])
        if step != "substitute":
            kernel.vector("values", VALUES, self.args[VALUES], written=False)
            kernel.matrix("vectors", VECTORS, self.args[VECTORS])
        count = self.batch * self.size * (self.size if step == "product" else 1)
        kernel.param("count", count)
        kernel.add(sizes("c64"))
        text = render("linalg/eig_vectors", step=step, complex=self.complex)
        return kernel.build(f"linalg_eig_{step}", [text], 256, grid_for(count))

    def of_matrices(self, kernel: MatrixKernel, name: str, texts: list[str]) -> Launch:
        """A workgroup for each matrix."""
        kernel.param("groups", self.batch)
        return kernel.build(f"linalg_eig_{name}", texts, self.threads, grid_for(self.batch * 256))


def lower_eig(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: matrices (batch, n, n), eigenvalues (batch, n) and, if they are wanted, eigenvectors (batch, n, n)."""
    problem = Eigenproblem(op.args, op.id, target)
    return Lowered(tuple(problem.launches()), tuple(size for _, size in problem.temporaries.values()))
