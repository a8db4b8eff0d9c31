"""Block Jacobi for larger matrices: rotations of pairs of blocks of columns, found in workgroup memory.

A sweep takes as many rounds as there are blocks, less one; in a round all blocks are paired, and each pair is rotated.
As many sweeps are dispatched as a matrix may need: those that find nothing left to do return at once, and nothing is
read back. A matrix that is not converged by then is no wrong result: what is left is in the residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.template import render
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding
from torch_webgpu.wgsl.launch import ERRORS, Launch, Lowered, grid_for

from .jacobi import ITEM_BYTES, Rotations, sizes
from .matrices import MatrixKernel

PAIRED = {"f32": 32, "f64": 16, "c64": 16}
"""Columns of two blocks."""
SWEEPS = {False: 16, True: 30}
"""Of a Hermitian matrix, of columns: those of a matrix of low rank take more than twice as many as others."""
WORKGROUP = 256
MEASURED = 16
"""Elements whose size a thread looks at."""
A, VALUES, VECTORS = 0, 1, 2
Step = Literal["values", "order", "left", "right"]


@dataclass(frozen=True)
class Blocks:
    """Matrices of ``height`` by ``size``, and how their blocks lie in memory.

    ``element``: WGSL of an element of the operand. ``relative``: the columns are rotated to be orthogonal; else the
    matrix, which is Hermitian, to be diagonal. ``vectors``: whether the rotations are wanted. ``converged``: the bits
    of what counts as nothing to rotate.
    """

    args: tuple[Spec, ...]
    op: int
    element: str
    relative: bool
    vectors: bool
    converged: int

    @property
    def dtype(self) -> str:
        return self.args[A].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, height, size."""
        return self.args[A].shape

    @property
    def most(self) -> int:
        """Sweeps."""
        return SWEEPS[self.relative]

    @property
    def paired(self) -> int:
        return PAIRED[self.dtype]

    @cached_property
    def columns(self) -> int:
        """With zeros up to an even number of blocks."""
        return -(-self.shape[2] // self.paired) * self.paired

    @property
    def padded(self) -> int:
        """The matrix's rows, with zeros."""
        return -(-self.shape[1] // self.paired) * self.paired

    @property
    def rows(self) -> int:
        """Those, and those of the rotations."""
        return self.padded + (self.columns if self.vectors else 0)

    @property
    def pairs(self) -> int:
        return self.columns // self.paired

    @property
    def rounds(self) -> int:
        return 2 * self.pairs - 1

    @property
    def temporaries(self) -> tuple[int, ...]:
        """Bytes of the work, the rotations of a round, the state, values, their order, the norms of columns."""
        batch, _, size = self.shape
        item = ITEM_BYTES[self.dtype]
        real = 8 if self.dtype == "f64" else 4
        turns = batch * self.pairs * self.paired**2 * item
        work = batch * self.rows * self.columns * item
        return (work, turns, batch * (self.most + 1) * 4, batch * size * real, batch * size * 4, batch * size * real)

    def binding(self, name: str) -> int:
        """The number of a temporary's binding."""
        return len(self.args) + ("work", "turns", "state", "found", "order", "norms").index(name)

    def kernel(self, *temporaries: str, **params: int) -> MatrixKernel:
        """A kernel with some temporaries, those whose name ends in "=" to be written, and the sizes."""
        kernel = MatrixKernel(self.dtype)
        kernel.add(sizes(self.dtype))
        real = "f64" if self.dtype == "f64" else "f32"
        dtypes = {"state": "u32", "order": "u32", "found": real, "norms": real}
        for text in temporaries:
            name = text.rstrip("=+")
            access: Literal["read", "read_write"] = "read" if text == name else "read_write"
            mode: Literal["plain", "atomic"] = "atomic" if text.endswith("+") else "plain"
            kernel.binding(Binding(name, dtypes.get(name, self.dtype), access, mode), self.binding(name))
        batch, height, size = self.shape
        known = {"batch": batch, "height": height, "size": size, "rows": self.rows, "columns": self.columns}
        known |= {"padded": self.padded, "states": self.most + 1}
        for name, value in {**known, **params}.items():
            kernel.param(name, value)
        return kernel

    def lowered(self) -> Lowered:
        first = len(self.args)
        launches = [self.fill(True), self.fill(False), *self.sweeps(), self.end("values"), self.end("order")]
        return Lowered(tuple(launches), self.temporaries, (self.binding("state") - first,))

    def fill(self, measures: bool) -> Launch:
        batch, height, size = self.shape
        threads = -(-height * size // MEASURED)
        count = batch * (threads if measures else self.rows * self.columns)
        kernel = self.kernel(*(["state+"] if measures else ["state", "work="]), count=count, threads=threads)
        kernel.matrix("a", A, self.args[A], written=False)
        text = render("linalg/jacobi_fill", measures=measures)
        return kernel.build("linalg_jacobi_fill", [self.element, text], WORKGROUP, grid_for(count))

    def sweeps(self) -> Iterator[Launch]:
        """The launches of all rounds of all sweeps: two kernels, with the numbers of the round."""
        templates = [self.solve(), self.turn()]
        for sweep in range(self.most):
            for round_ in range(self.rounds):
                for launch in templates:
                    yield replace(launch, values=(*launch.values[:-2], sweep, round_))

    def state(self) -> str:
        return render("linalg/jacobi_state", converged=self.converged, n=self.paired)

    def solve(self) -> Launch:
        n, groups = self.paired, self.shape[0] * self.pairs
        rotations = Rotations(self.dtype, n, n, relative=self.relative, cross=True)
        work = "work" if self.relative else "work="
        kernel = self.kernel(work, "turns=", "state+", **self.of_rounds(groups))
        main = render(
            "linalg/jacobi_solve", n=n, width=rotations.width, threads=rotations.threads, relative=self.relative
        )
        texts = [self.state(), rotations.rotations(), main]
        return kernel.build("linalg_jacobi_solve", texts, rotations.threads, grid_for(groups * WORKGROUP))

    def turn(self) -> Launch:
        n, tiles = self.paired, self.rows // self.paired
        groups = self.shape[0] * self.pairs * tiles
        kernel = self.kernel("work=", "turns", "state", tiles=tiles, **self.of_rounds(groups))
        threads = n * n // 4
        main = render("linalg/jacobi_turn", n=n, width=n + 1, threads=threads, two_sided=not self.relative)
        return kernel.build("linalg_jacobi_turn", [self.state(), main], threads, grid_for(groups * WORKGROUP))

    def of_rounds(self, groups: int) -> dict[str, int]:
        """Parameters; the last two are those that rounds differ in."""
        return {"groups": groups, "pairs": self.pairs, "blocks": 2 * self.pairs, "sweep": 0, "round": 0}

    def end(self, step: Step, vectors: int = VECTORS, first_row: int = 0, tall: int = 1) -> Launch:
        """A launch after the sweeps. ``vectors``: the argument that they are, ``tall`` rows from one of the work on."""
        batch, _, size = self.shape
        count = batch * size * tall
        bound = {
            "values": ["work", "found=", *(["norms="] if self.vectors else [])],
            "order": ["found", "state", "order="],
            "left": ["work", "state", "order", "found"],
            "right": ["work", "state", "order", "norms"],
        }
        kernel = self.kernel(*bound[step], count=count)
        if step == "order":
            kernel.vector("values", VALUES, self.args[VALUES])
            if self.relative:
                kernel.binding(ERROR_FLAGS, ERRORS)
                kernel.param("op", self.op)
        elif step != "values":
            kernel.matrix("vectors", vectors, self.args[vectors])
            kernel.param("first_row", first_row)
            kernel.param("tall", tall)
        text = render("linalg/jacobi_end", step=step, relative=self.relative, vectors=self.vectors)
        return kernel.build(f"linalg_jacobi_{step}", [text], WORKGROUP, grid_for(count))
