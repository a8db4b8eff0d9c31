"""Products of bfloat16 on subgroup matrices of float16, which adapters have where they have none of bfloat16.

A bfloat16 has 8 bits of precision, a float16 11, but of its exponents only few. So each operand is multiplied by a
power of two, which makes its largest magnitude nearly as large as a float16 can be, as it is brought to workgroup
memory, and the sums by the inverse. Numbers down to 2**-32 of an operand's largest are exact then; smaller ones lose
less than 2**-39 of the largest. Sums are float32, as everywhere.

One more launch finds the largest magnitudes, and leaves their bits in a temporary: ``scales``, one number an operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered

from .operand import Side, in_groups, reader, run_of, words_of

MATRIX = ("m", "n")
"""The coordinates of one matrix."""
SCALES_BYTES = 8
MIN_WORK = 1 << 28
"""Multiplications from which finding the largest magnitudes is worth it."""
GROUPS = 528
"""Workgroups that keep a large GPU's memory busy."""


def operand_for(dtype: str, work: int) -> str:
    """What operands of ``dtype`` are multiplied as, by subgroup matrices, in a product of ``work`` multiplications."""
    return "f16" if dtype == "bf16" and work >= MIN_WORK else dtype


def read_scales(kernel: Draft, scales: int) -> None:
    """Gives a product's kernel what :func:`scale_lines` speak of; ``scales``: the temporary."""
    kernel.binding(Binding("scales", "u32"), scales)
    kernel.add(wgsl_source("matmul/scaled"))


def scale_lines() -> Iterator[str]:
    """Statements that declare the scale of each operand, and the factors ``back``."""
    for n, x in enumerate("ab"):
        yield f"  let {x}_exponent = exponent_for(scales_load({n}u));"
        yield f"  let {x}_scale = power_of_two({x}_exponent);"
    yield "  let back = factors_back(a_exponent + b_exponent);"


class Part(NamedTuple):
    """An operand as ``slices`` of ``outer`` lines of ``inner`` numbers, which are neighbours in memory."""

    side: Side
    slices: int
    outer: int
    inner: int

    @staticmethod
    def of(side: Side, slices: int, rows: int, k: int) -> Part:
        """A matrix with its rows, or columns, and what is summed over."""
        return Part(side, slices, rows, k) if side.k_major else Part(side, slices, k, rows)


def flat(kernel: Draft, x: str, arg: int, spec: Spec) -> Part:
    """Gives ``kernel``, whose coordinates are a matrix's, a dense tensor as one line of operand ``x``."""
    numel = prod(spec.shape)
    layout = ((1, 1, numel), (0, 0, 1)) if x == "a" else ((1, numel, 1), (0, 1, 0))
    line = Spec(spec.dtype, *layout, spec.aligned)
    kernel.input(x, arg, line, MATRIX)
    side = Side(x, True, in_groups(line, 2 if x == "a" else 1, run_of(spec.dtype)))
    kernel.add(reader(side, x, words_of(spec.dtype)))
    return Part(side, 1, 1, numel)


def largest_launch(kernel: Draft, parts: Sequence[Part], dtype: str, scales: int) -> Launch:
    """The launch that leaves the bits of each operand's largest finite magnitude in temporary ``scales``, which is zero
    before. ``kernel`` has the operands, of bfloat16 or float32, and their readers.
    """
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
    for number, part in enumerate(parts):
        step = run_of(dtype) if part.side.runs else 1
        units = part.inner // step
        lines += _operand(kernel, part, dtype, number, units, step)
        most = max(most, part.slices * part.outer * units)
    lines += [
        "  workgroupBarrier();",
        "  if (lid < 2u) { scales_atomic_max(lid, atomicLoad(&largest[lid])); }",
        "}",
    ]
    grid = (min(GROUPS, -(-most // WORKGROUP)), 1, 1)
    return kernel.build("matmul_largest", ["\n".join([*lines, ""])], WORKGROUP, grid)


def after(first: Launch, product: Lowered) -> Lowered:
    """A product, and before it the launch that finds its scales, whose temporary is the one after the product's."""
    temporaries = (*product.temporaries, SCALES_BYTES)
    return Lowered((first, *product.launches), temporaries, (len(product.temporaries),))


def _operand(kernel: Draft, part: Part, dtype: str, number: int, units: int, step: int) -> Iterator[str]:
    """Statements that look at all of an operand, run by run or number by number."""
    side, x = part.side, part.side.x
    total = kernel.params.add(f"{x}_total", part.slices * part.outer * units)
    outer_text, units_text = kernel.params.add(f"{x}_outer", part.outer), kernel.params.add(f"{x}_units", units)
    row, place = ("line", "first") if side.k_major else ("first", "line")
    at = f"{x}_row(slice, {row}), {x}_step(slice, {place})"
    found = f"largest_of_{dtype}({x}_run({at}))" if side.runs else f"finite_bits(bitcast<u32>({x}_value({at})))"
    yield "  {"
    yield "    var most = 0u;"
    yield f"    for (var i = wid.x * {WORKGROUP}u + lid; i < {total}; i += nwg.x * {WORKGROUP}u) {{"
    yield f"      let first = i % {units_text} * {step}u;"
    yield f"      let above = i / {units_text};"
    yield f"      let line = above % {outer_text};"
    yield f"      let slice = above / {outer_text};"
    yield f"      most = max(most, {found});"
    yield "    }"
    yield f"    atomicMax(&largest[{number}], most);"
    yield "  }"
