"""Products of bfloat16 on subgroup matrices of float16 (adapters have none of bfloat16) that scale operands as they
load them: convolutions, whose operands are windows, and matrices for whose copies there is no room (:mod:`.halves`).

A bfloat16 has 8 bits of precision, a float16 11, but of its exponents only few. So each operand is multiplied by a
power of two, which makes its largest magnitude nearly as large as a float16 can be, as it is brought to workgroup
memory, and the sums by the inverse. Numbers down to 2**-31 of an operand's largest are exact then; smaller ones lose
less than 2**-39 of the largest. Sums are float32, as everywhere.

One more launch finds the largest magnitudes, and leaves their bits in a temporary: ``scales``, one number an operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered

from .operand import Operand, Run, Scale, Side, Strided, run_of, tensors_draft

SCALES_BYTES = 8
MIN_WORK = 1 << 28
"""Multiplications from which finding the largest magnitudes is worth it."""
GROUPS = 528
"""Workgroups that keep a large GPU's memory busy."""


def operand_for(dtype: str, work: int) -> str:
    """What operands of ``dtype`` are multiplied as, by subgroup matrices, in a product of ``work`` multiplications."""
    return "f16" if dtype == "bf16" and work >= MIN_WORK else dtype


def read_scales(kernel: Draft, scales: int, by_line: bool = False) -> None:
    """Gives a product's kernel what :func:`scale_lines` need; ``scales``: the temporary. ``by_line``: it has the
    exponents of lines' scales.
    """
    kernel.binding(Binding("exponents", "i32") if by_line else Binding("scales", "u32"), scales)
    kernel.add(wgsl_source("matmul/scaled"))


def scale_lines(scales: Sequence[Scale | None]) -> Iterator[str]:
    """Statements that declare the scales of a and b, and the factors ``back`` of their products; none if there are
    none, or one for each line.
    """
    names = [x for x, scale in zip("ab", scales, strict=True) if scale is not None and not scale.by_line]
    for x in names:
        yield from exponent_lines(x, "ab".index(x))
    if names:
        yield f"  let back = factors_back({' + '.join(f'{x}_exponent' for x in names)});"


def exponent_lines(x: str, number: int) -> Iterator[str]:
    """Statements that declare the scale of operand ``x``, whose largest magnitude is number ``number``."""
    yield f"  let {x}_exponent = exponent_for(scales_load({number}u));"
    yield f"  let {x}_scale = power_of_two({x}_exponent);"


def scaled_run(x: str, run: str) -> str:
    """A run of operand ``x``, of bfloat16, as it is multiplied."""
    return f"scaled_run({run}, {x}_scale)"


@dataclass(frozen=True)
class Scaled:
    """An operand of bfloat16 that the product scales as it loads it; argument ``magnitudes`` has the largest ones."""

    unscaled: Operand
    magnitudes: int

    @property
    def x(self) -> str:
        return self.unscaled.x

    @property
    def dtype(self) -> str:
        return self.unscaled.dtype

    @property
    def element_bytes(self) -> float:
        return self.unscaled.element_bytes

    @property
    def scale(self) -> Scale:
        return Scale(self.magnitudes, by_line=False)

    @property
    def tensor(self) -> Strided | None:
        return self.unscaled.tensor

    def side(self, run: int) -> Side:
        return self.unscaled.side(run)

    def bind(self, kernel: Draft) -> None:
        self.unscaled.bind(kernel)

    def load(self, side: Side, run: Run) -> Sequence[str]:
        return self.unscaled.load(side, run)


def largest_launch(tensors: Sequence[Strided], scales: int) -> Launch:
    """The launch that leaves the bits of the largest finite magnitude of a and of b, both of bfloat16, in
    temporary ``scales``, which is zero before.
    """
    kernel, sides = tensors_draft(tensors)
    kernel.binding(Binding("scales", "u32", "read_write", "atomic"), scales)
    kernel.add(wgsl_source("matmul/scaled"))
    lines = [
        "var<workgroup> largest: array<atomic<u32>, 2>;",
        f"@compute @workgroup_size({WORKGROUP})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
        "  if (lid < 2u) { atomicStore(&largest[lid], 0u); }",
        "  workgroupBarrier();",
    ]
    most = 1
    for tensor, side in zip(tensors, sides, strict=True):
        step = run_of(tensor.dtype) if side.runs else 1
        outer, inner = (tensor.rows, tensor.k) if side.k_major else (tensor.k, tensor.rows)
        units = inner // step
        lines += _operand(kernel, tensor, side, outer, units, step)
        most = max(most, tensor.slices * outer * units)
    lines += [
        "  workgroupBarrier();",
        "  if (lid < 2u) { scales_atomic_max(lid, atomicLoad(&largest[lid])); }",
        "}",
    ]
    grid = (min(GROUPS, -(-most // WORKGROUP)), 1, 1)
    return kernel.build("matmul_largest", ["\n".join([*lines, ""])], WORKGROUP, grid)


def after(first: Launch, product: Lowered) -> Lowered:
    """A product, and before it the launch that finds its scales. Their temporary is the one after the product's."""
    temporaries = (*product.temporaries, SCALES_BYTES)
    return Lowered((first, *product.launches), temporaries, (len(product.temporaries),))


def _operand(kernel: Draft, tensor: Strided, side: Side, outer: int, units: int, step: int) -> Iterator[str]:
    """Statements that look at all of an operand: ``outer`` lines of ``units`` runs, or numbers, of ``step``."""
    x = side.x
    total = kernel.params.add(f"{x}_total", tensor.slices * outer * units)
    outer_text, units_text = kernel.params.add(f"{x}_outer", outer), kernel.params.add(f"{x}_units", units)
    row, position = ("line", "first") if side.k_major else ("first", "line")
    at = f"{x}_row(slice, {row}), {x}_step(slice, {position})"
    bits = f"largest_of_bf16({x}_run({at}))" if side.runs else f"finite_bits(bitcast<u32>({x}_value({at})))"
    yield "  {"
    yield "    var most = 0u;"
    yield f"    for (var i = wid.x * {WORKGROUP}u + lid; i < {total}; i += nwg.x * {WORKGROUP}u) {{"
    yield f"      let first = i % {units_text} * {step}u;"
    yield f"      let above = i / {units_text};"
    yield f"      let line = above % {outer_text};"
    yield f"      let slice = above / {outer_text};"
    yield f"      most = max(most, {bits});"
    yield "    }"
    yield f"    atomicMax(&largest[{'ab'.index(x)}], most);"
    yield "  }"
