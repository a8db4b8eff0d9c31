"""Jacobi's method in workgroup memory: what decides how large a matrix fits, and the text that kernels share."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target

from .matrices import power_above

ITEM_BYTES = {"f32": 4, "f64": 8, "c64": 8}
SWEEPS = 30
"""At most; matrices take about ten."""
SMALLEST_COSINE = {"f32": 2.0**-25, "f64": 2.0**-54, "c64": 2.0**-25}
"""Of what is left of an element, beside the largest one, or of the cosine of two columns, nothing is rotated away."""
UNUSED_BYTES = 256
"""Of workgroup memory: room for what compilers add."""


@dataclass(frozen=True)
class Rotations:
    """Rotations of a Hermitian matrix of ``n`` rows, an even number, and of ``rows`` rows of as many columns beside it.

    ``relative``: it is a Gram matrix, and an element counts beside the diagonal's. ``cross``: the columns are two
    halves, which rounds may rotate with each other alone. ``more``: real numbers that a kernel keeps besides.
    """

    dtype: str
    n: int
    rows: int
    relative: bool = False
    cross: bool = False
    more: int = 0

    @property
    def width(self) -> int:
        """From a row to the next one in workgroup memory: odd, so that columns lie in all of its banks."""
        return self.n + 1

    @property
    def threads(self) -> int:
        return min(256, power_above((self.n // 2) ** 2, 32))

    @property
    def layout(self) -> dict[str, int]:
        """What templates are told of the matrices in workgroup memory, and of who rotates them."""
        return {"n": self.n, "rows": self.rows, "width": self.width, "threads": self.threads}

    @property
    def size_bytes(self) -> int:
        item = ITEM_BYTES[self.dtype]
        return item * (self.width * (self.n + self.rows) + 3 * self.n // 2 + self.more) + UNUSED_BYTES

    def fits(self, target: Target) -> bool:
        return self.size_bytes <= target.workgroup_bytes and self.threads <= target.workgroup_threads

    def text(self) -> str:
        """WGSL of sizes and rotations."""
        return f"{sizes(self.dtype)}\n{self.rotations()}"

    def rotations(self) -> str:
        """WGSL of ``round``, ``cross_round`` and what they work on."""
        return render(
            "linalg/jacobi",
            complex=self.dtype == "c64",
            **self.layout,
            relative=self.relative,
            cross=self.cross,
            negligible=SMALLEST_COSINE[self.dtype],
        )


def sizes(dtype: str) -> str:
    """WGSL of sizes of numbers."""
    return render("linalg/sizes", complex=dtype == "c64", real="f64" if dtype == "f64" else "f32")


def bits_of(value: float) -> int:
    """Of a number as float32."""
    return struct.unpack("I", struct.pack("f", value))[0]
