"""Products of float32 on subgroup matrices of float16, where a program allows them to be less than exact
(``torch.set_float32_matmul_precision``).

"high": each number, scaled into float16's range as bfloat16 ones are (:mod:`.scaled`), is the sum of two float16
*halves*, the number nearest to it and what that leaves. The product of two numbers is that of the upper halves and
those of an upper and a lower one, which leaves out 2**-21 of it at most; CUDA's TensorFloat32 leaves out 2**-10.
(S. Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", 2018.) "medium": upper halves only,
which leaves out 2**-10. That holds for numbers down to 2**-16 ("medium": 2**-28) of an operand's largest; all others
are precise to 2**-39 of that. Sums are float32.

One launch finds the scales, a second one leaves both operands' halves in temporaries, from where they are multiplied.
There lines are whole runs of 16 bytes, and sums are padded with zeros to whole steps of every tile. An operand stays
contiguous along the dimension along which it was. Along the sum the halves alternate, as many numbers as a fragment
has, so that all that a step multiplies lies side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, grid_for

from .matrix_tile import MatrixTile, config_for, tiles_for
from .operand import RUN_BYTES, Run, Scale, Side, Strided, run_of, tensors_draft
from .scaled import read_scales, scale_lines

COUNTS = {"highest": 0, "high": 2, "medium": 1}
"""Into how many halves numbers fall, by the setting; 0: float32 is multiplied as it is."""
MAX_BYTES = 1 << 30
"""Of one operand's halves."""
RUN = run_of("f16")
QUAD = RUN_BYTES // BY_NAME["f32"].itemsize

# Estimates for an H200, in ns: what a multiplication saves that register tiles (44 TFLOPS) do not do but subgroups, 3
# times (290); what three more launches cost; and what reading an element twice, and writing and reading its halves.
SAVED_NS = 2.4e-5
LAUNCHES_NS = 25_000
MOVED_NS = 3e-3


def is_worth(slices: int, m: int, n: int, k: int) -> bool:
    """Whether a product gains by it. Sizes as in :mod:`.matmul`."""
    return slices * m * n * k * SAVED_NS > LAUNCHES_NS + slices * (m + n) * k * MOVED_NS


def choose(target: Target, count: int) -> tuple[MatrixConfig, list[MatrixTile]] | None:
    """The subgroup matrices and the tiles for ``count`` halves; None where the adapter has none."""
    config = config_for(target, "f16")
    if config is None:
        return None
    tiles = [tile for tile in tiles_for(target, config) if tile.k % (count * config.k) == 0]
    return (config, tiles) if tiles else None


def padded_length(k: int, tiles: Sequence[MatrixTile]) -> int:
    """``k``, padded to whole steps of all ``tiles``."""
    step = max(tile.k for tile in tiles)
    return -(-k // step) * step


@dataclass(frozen=True)
class Halved:
    """An operand of float32 as ``count`` halves of each number, which lie in temporary ``temporary``. Argument
    ``magnitudes`` has what they are scaled by. ``source``: how the tensor that is halved travels.

    ``slices`` matrices of ``rows`` (columns, of b) and ``k`` positions of the sum, ``padded`` to whole steps; the
    halves alternate every ``fragment`` positions.
    """

    source: Side
    slices: int
    rows: int
    k: int
    padded: int
    count: int
    fragment: int
    temporary: int
    magnitudes: int

    @staticmethod
    def of(tensor: Strided, padded: int, count: int, config: MatrixConfig, temporary: int, magnitudes: int) -> Halved:
        """Slices that are one and the same, as an expanded tensor's, are one."""
        slices = tensor.slices if tensor.spec.strides[0] else 1
        return Halved(tensor.side(QUAD), slices, tensor.rows, tensor.k, padded, count, config.k, temporary, magnitudes)

    @property
    def x(self) -> str:
        return self.source.x

    @property
    def dtype(self) -> str:
        return "f32"

    @property
    def element_bytes(self) -> float:
        return self.count * BY_NAME["f16"].itemsize

    @property
    def scale(self) -> Scale:
        return Scale(self.magnitudes, on_load=False)

    @property
    def tensor(self) -> None:
        return None

    @property
    def lines(self) -> int:
        """Of numbers that are neighbours in memory, in a slice of the operand."""
        return self.rows if self.source.k_major else self.padded

    @property
    def pitch(self) -> int:
        """From a line of the temporary to the next."""
        return self.count * self.padded if self.source.k_major else -(-self.rows // RUN) * RUN

    @property
    def slice_numbers(self) -> int:
        return self.pitch * (self.rows if self.source.k_major else self.count * self.padded)

    @property
    def size_bytes(self) -> int:
        return self.slices * self.slice_numbers * BY_NAME["f16"].itemsize

    @property
    def units(self) -> int:
        """Runs that a line has before it is halved."""
        return (self.padded if self.source.k_major else self.pitch) // RUN

    def fits(self, target: Target) -> bool:
        return self.size_bytes <= min(MAX_BYTES, target.max_binding_bytes)

    def side(self, run: int) -> Side:
        return Side(self.x, self.source.k_major, runs=True)

    def bind(self, kernel: Draft) -> None:
        kernel.binding(Binding(self.x, "u32"), self.temporary)
        kernel.param(f"{self.x}_pitch", self.pitch)
        if self.slices > 1:
            kernel.param(f"{self.x}_slice", self.slice_numbers)

    def load(self, side: Side, run: Run) -> list[str]:
        """A run is 16 bytes of halves: products of these are on subgroup matrices alone."""
        x, kind = self.x, self.x.upper()
        base = "0u" if self.slices == 1 else f"slice * P.{x}_slice"
        row, step = (f" * P.{x}_pitch", "") if side.k_major else ("", f" * P.{x}_pitch")
        return [
            f"alias {kind}Row = u32;",
            f"alias {kind}Step = u32;",
            f"fn {x}_row(slice: u32, row: u32) -> u32 {{ return {base} + row{row}; }}",
            f"fn {x}_step(slice: u32, k: u32) -> u32 {{ return k{step}; }}",
            f"fn {x}_run(row: u32, step: u32) -> {run.type} {{ return {x}_load4((row + step) / {RUN}u); }}",
        ]

    def write(self, kernel: Draft) -> None:
        """Gives ``kernel``, which reads the tensor, ``fn halve_<x>(i: u32, scale: f32)``: writes the ``i``-th run of
        each half.
        """
        kernel.binding(Binding(f"{self.x}_halves", "u32", "read_write"), self.temporary)
        kernel.add("\n".join(self._write(kernel)))

    def _write(self, kernel: Draft) -> Iterator[str]:
        x, add = self.x, kernel.params.add
        units, lines = add(f"{x}_units", self.units), add(f"{x}_lines", self.lines)
        rows, k, pitch = add(f"{x}_rows", self.rows), add("k", self.k), add(f"{x}_pitch", self.pitch)
        row, position = ("line", "first") if self.source.k_major else ("first", "line")
        yield f"fn halve_{x}(i: u32, scale: f32) {{"
        yield f"  let first = i % {units} * {RUN}u;"
        yield f"  let above = i / {units};"
        yield f"  let line = above % {lines};"
        yield f"  let slice = above / {lines};"
        for quad in range(RUN // QUAD):
            yield from self._quad(f"bits{quad}", row, position, quad * QUAD, rows, k)
        place = f"position / {self.fragment}u * {self.count * self.fragment}u + position % {self.fragment}u"
        yield f"  let position = {position};"
        yield f"  let place = {place};" if self.count > 1 else "  let place = position;"
        base = "" if self.slices == 1 else f"slice * {add(f'{x}_slice', self.slice_numbers)} + "
        at = f"line * {pitch} + place" if self.source.k_major else f"place * {pitch} + first"
        yield f"  let at = ({base}{at}) / {RUN}u;"
        if self.count == 1:
            yield f"  {x}_halves_store4(at, vec4<u32>(half_of(bits0, scale), half_of(bits1, scale)));"
        else:
            lower = f"{self.fragment // RUN}u" if self.source.k_major else f"{self.fragment}u * ({pitch} / {RUN}u)"
            yield "  let halves0 = halves_of(bits0, scale);"
            yield "  let halves1 = halves_of(bits1, scale);"
            yield f"  {x}_halves_store4(at, vec4<u32>(halves0.xy, halves1.xy));"
            yield f"  {x}_halves_store4(at + {lower}, vec4<u32>(halves0.zw, halves1.zw));"
        yield "}"

    def _quad(self, name: str, row: str, position: str, ahead: int, rows: str, k: str) -> Iterator[str]:
        """Declares the bits of four numbers, ``ahead`` of a unit's first; of those that do not exist 0."""
        x, k_major, runs = self.x, self.source.k_major, self.source.runs
        values = []
        for e in range(1 if runs else QUAD):
            length = QUAD if runs else 1  # those that exist are whole quads
            along = f"first + {ahead + e}u"
            r, p = (row, along) if k_major else (along, position)
            inside = f"{p} < {k}" if k_major else f"{p} < {k} && {r} < {rows}"
            inner, end = (p, k) if k_major else (r, rows)
            inner = f"min({inner}, {end} - {length}u)"
            outer = row if k_major else f"min({position}, {k} - 1u)"
            r, p = (outer, inner) if k_major else (inner, outer)
            at = f"{x}_row(slice, {r}), {x}_step(slice, {p})"
            value = f"{x}_run({at})" if runs else f"bitcast<u32>({x}_value({at}))"
            values.append(f"select({'vec4<u32>()' if runs else '0u'}, {value}, {inside})")
        yield f"  let {name} = vec4<u32>({', '.join(values)});"


def halving_launch(tensors: Sequence[Strided], operands: Sequence[Halved]) -> Launch:
    """The launch that writes both operands' halves."""
    kernel, _ = tensors_draft(tensors)
    read_scales(kernel, operands[0].magnitudes)
    kernel.add(wgsl_source("matmul/halves"))
    for operand in operands:
        operand.write(kernel)
    threads = [operand.slices * operand.lines * operand.units for operand in operands]
    ends = [kernel.params.add(f"{x}_threads", count) for x, count in zip("ab", threads, strict=True)]
    lines = [
        f"@compute @workgroup_size({WORKGROUP})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
        *scale_lines([operand.scale for operand in operands]),
        f"  let i = (wid.y * nwg.x + wid.x) * {WORKGROUP}u + lid;",
        f"  if (i < {ends[0]}) {{",
        "    halve_a(i, a_scale);",
        f"  }} else if (i - {ends[0]} < {ends[1]}) {{",
        f"    halve_b(i - {ends[0]}, b_scale);",
        "  }",
        "}",
    ]
    return kernel.build("matmul_halves", ["\n".join([*lines, ""])], WORKGROUP, grid_for(sum(threads)))
