"""Products on subgroup matrices of float16 of numbers that it cannot hold, from copies that it can: of bfloat16, which
adapters have no matrices of, and of float32, where a program allows products to be less than exact
(``torch.set_float32_matmul_precision``).

Each line along the sum, which is a row of a or a column of b, is multiplied by a power of two that makes its largest
magnitude nearly as large as a float16 can be; the sums by the inverses of both. What a number is then falls into
float16 *halves*, the number nearest to it and what that leaves. (S. Markidis et al., "NVIDIA Tensor Core
Programmability, Performance & Precision", 2018.)

* float32, "high": two halves. The product of two numbers is that of the upper halves and those of an upper and a lower
  one, which leaves out 2**-21 of it at most; CUDA's TensorFloat32 leaves out 2**-10.
* float32, "medium": upper halves only, which leaves out 2**-10.
* bfloat16: upper halves, which have all of its 8 bits.

That holds for numbers down to 2**-16 ("medium": 2**-28, bfloat16: 2**-31) of their line's largest; all others are
precise to 2**-39 of that. Sums are float32.

One launch (:mod:`.halving`) leaves both operands' halves and the exponents of their lines in temporaries, from where
they are multiplied. There what is contiguous is whole runs of 16 bytes, and sums are padded with zeros to whole steps.
An operand stays contiguous along the dimension along which it was. Along the sum the halves alternate: a step's first
part is of upper halves, its second of lower ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.kernels.points import Draft
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.kernel import Binding

from .matrix_tile import MatrixTile, config_for, tiles_for
from .operand import Run, Scale, Side, Strided, run_of

COUNTS = {"highest": 0, "high": 2, "medium": 1}
"""Into how many halves float32 falls, by the setting; 0: it is multiplied as it is."""
MAX_BYTES = 1 << 30
"""Of one operand's halves."""
MAX_COPY_BYTES = 1 << 28
"""Of a bfloat16 operand as float16; larger ones are scaled as they are loaded (:mod:`.scaled`)."""
LEAST_LINES = 512
"""Of both operands, that a copy is worth: each is loaded once for every block of the other's lines."""
RUN = run_of("f16")

# Estimates for an H200, in ns: what a multiplication saves that register tiles (44 TFLOPS) do not do but subgroups, 3
# times (290); what one more launch costs; and what reading an element twice, and writing and reading its halves.
SAVED_NS = 2.4e-5
LAUNCH_NS = 8_000
MOVED_NS = 3e-3


def is_worth(slices: int, m: int, n: int, k: int) -> bool:
    """Whether a product gains by it. Sizes as in :mod:`.matmul`."""
    return slices * m * n * k * SAVED_NS > LAUNCH_NS + slices * (m + n) * k * MOVED_NS


def is_worth_copying(slices: int, m: int, n: int, k: int, a: Strided, b: Strided) -> bool:
    """Whether a product of bfloat16 gains by float16 copies of its operands over scaling what it loads.

    Copies of what lies across the sum take longest: of both operands (768×4096×3072, an H200) 46 µs, while the product
    becomes 11 µs faster, and needs no launch of 24 µs that finds the largest magnitudes.
    """
    lies_along = any(operand.side(RUN).k_major for operand in (a, b))
    fits = slices * max(m, n) * k * BY_NAME["f16"].itemsize <= MAX_COPY_BYTES
    return lies_along and fits and min(m, n) >= LEAST_LINES


def choose(target: Target, tensors: tuple[Strided, Strided]) -> tuple[MatrixConfig, list[MatrixTile]] | None:
    """The subgroup matrices and the tiles for halves of these; None where the adapter has none."""
    config = config_for(target, "f16")
    if config is None:
        return None
    a, b = tensors
    tiles = tiles_for(target, config, (a.side(run_of(a.dtype)), b.side(run_of(b.dtype))))
    return (config, tiles) if tiles else None


@dataclass(frozen=True)
class Halved:
    """An operand of ``dtype`` as ``count`` halves of each number, which lie in temporary ``temporary``. ``source``: how
    the tensor that is halved travels.

    ``slices`` matrices of ``rows`` (columns, of b) and ``k`` positions of the sum, ``padded`` to whole steps; the
    halves alternate every ``part`` positions. Argument ``exponents`` has, from number ``first`` on, those of the
    powers of two that the rows of all slices are multiplied by.
    """

    dtype: str
    source: Side
    slices: int
    rows: int
    k: int
    padded: int
    count: int
    part: int
    temporary: int
    exponents: int
    first: int

    @staticmethod
    def of(tensor: Strided, padded: int, count: int, part: int, temporary: int, exponents: int, first: int) -> Halved:
        """Slices that are one and the same, as an expanded tensor's, are one."""
        slices = tensor.slices if tensor.spec.strides[0] else 1
        dtype, source, rows, k = tensor.dtype, tensor.side(run_of(tensor.dtype)), tensor.rows, tensor.k
        return Halved(dtype, source, slices, rows, k, padded, count, part, temporary, exponents, first)

    @property
    def x(self) -> str:
        return self.source.x

    @property
    def element_bytes(self) -> float:
        return self.count * BY_NAME["f16"].itemsize

    @property
    def scale(self) -> Scale:
        return Scale(self.exponents, by_line=True)

    @property
    def tensor(self) -> None:
        return None

    @property
    def lines(self) -> int:
        """Rows of all slices."""
        return self.slices * self.rows

    @property
    def pitch(self) -> int:
        """Numbers from one row (where rows are not contiguous: position of the sum) of the temporary to the next."""
        return self.count * self.padded if self.source.k_major else -(-self.rows // RUN) * RUN

    @property
    def slice_numbers(self) -> int:
        return self.pitch * (self.rows if self.source.k_major else self.count * self.padded)

    @property
    def size_bytes(self) -> int:
        return self.slices * self.slice_numbers * BY_NAME["f16"].itemsize

    def fits(self, target: Target) -> bool:
        return self.size_bytes <= min(MAX_BYTES, target.max_binding_bytes)

    def side(self, run: int) -> Side:
        return Side(self.x, self.source.k_major, runs=True)

    def bind(self, kernel: Draft) -> None:
        kernel.binding(Binding(self.x, "u32"), self.temporary)
        kernel.param(f"{self.x}_pitch", self.pitch)
        if self.slices > 1:
            kernel.param(f"{self.x}_slice", self.slice_numbers)
        if self.first:
            kernel.param(f"{self.x}_first", self.first)

    def load(self, side: Side, run: Run) -> list[str]:
        """A run is 16 bytes of halves: products of these are on subgroup matrices alone. Beside what products ask for,
        ``fn <x>_exponent(slice: u32, row: u32) -> i32``.
        """
        x, kind = self.x, self.x.upper()
        base, above = "0u", "row"
        if self.slices > 1:
            base, above = f"slice * P.{x}_slice", f"slice * P.{'m' if x == 'a' else 'n'} + row"
        if self.first:
            above = f"P.{x}_first + {above}"
        row, step = (f" * P.{x}_pitch", "") if side.k_major else ("", f" * P.{x}_pitch")
        return [
            f"alias {kind}Row = u32;",
            f"alias {kind}Step = u32;",
            f"fn {x}_row(slice: u32, row: u32) -> u32 {{ return {base} + row{row}; }}",
            f"fn {x}_step(slice: u32, k: u32) -> u32 {{ return k{step}; }}",
            f"fn {x}_run(row: u32, step: u32) -> {run.type} {{ return {x}_load4((row + step) / {RUN}u); }}",
            f"fn {x}_exponent(slice: u32, row: u32) -> i32 {{ return exponents_load({above}); }}",
        ]
