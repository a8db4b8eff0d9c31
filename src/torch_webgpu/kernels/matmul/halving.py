"""The launch that leaves the halves of a product's operands (:mod:`.halves`) and the exponents of their lines.

A *line* is what has a scale of its own: all positions of the sum of a row of a, or of a column of b. A workgroup looks
at all of its lines for their largest magnitudes, and then writes their halves. Numbers move in *units* of eight, 16
bytes of halves. Where an operand is contiguous along the sum, neighbouring threads move the units of one line; where it
is contiguous across it, a workgroup has a stripe of lines, and neighbouring threads move the units of one position.

A thread asks for the units of a few turns at once, and has them yet when it writes, if these are all. Otherwise it
reads them once more, by then from a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, grid_for

from .halves import RUN, Halved
from .operand import Strided, run_of, tensors_draft

TURNS, STRIPE_TURNS = 4, 8
"""At once, where threads share lines and where they share stripes, of which there may be few."""
LEAST_LANES = 8
"""Threads of a line: its first units are 128 bytes."""
STRIPES = (4, 2)
"""Widths of stripes in units: a bfloat16 stripe of two units is as wide as what a GPU's memory moves at once."""
MANY_GROUPS = 128
"""Workgroups that a large GPU's compute units all have one of."""


@dataclass(frozen=True)
class Shares:
    """How the threads of a workgroup share an operand: ``lanes`` of them go along the sum, in each of ``places``.

    ``turns``: how many units each moves at once; ``kept``: these are all that it moves.
    """

    operand: Halved
    places: int
    turns: int
    kept: bool

    @staticmethod
    def of(operand: Halved) -> Shares:
        if operand.source.k_major:
            length, lanes = operand.padded // RUN, LEAST_LANES
            while lanes < WORKGROUP and length > TURNS * lanes:
                lanes *= 2
        else:
            stripes = [operand.slices * -(-operand.rows // (RUN * units)) for units in STRIPES]
            units = next((u for u, count in zip(STRIPES, stripes, strict=True) if count >= MANY_GROUPS), STRIPES[-1])
            length, lanes = operand.padded, WORKGROUP // units
        turns = min(TURNS if operand.source.k_major else STRIPE_TURNS, -(-length // lanes))
        return Shares(operand, WORKGROUP // lanes, turns, kept=length <= turns * lanes)

    @property
    def x(self) -> str:
        return self.operand.x

    @property
    def k_major(self) -> bool:
        return self.operand.source.k_major

    @property
    def batched(self) -> bool:
        return self.operand.slices > 1

    @property
    def first(self) -> str:
        """The number of the operand's first exponent."""
        return f"P.{self.x}_first + " if self.operand.first else ""

    @property
    def lanes(self) -> int:
        return WORKGROUP // self.places

    @property
    def length(self) -> str:
        """Of a line: in units where these lie along it, otherwise in positions."""
        return f"P.padded / {RUN}u" if self.k_major else "P.padded"

    @property
    def groups(self) -> int:
        if self.k_major:
            return -(-self.operand.lines // self.places)
        return self.operand.slices * -(-self.operand.rows // (RUN * self.places))

    @property
    def lines(self) -> int:
        """That a thread has numbers of."""
        return 1 if self.k_major else RUN

    def add(self, kernel: Draft) -> None:
        """Gives ``kernel``, which reads the tensor, the operand's parameters and

        * ``fn <x>_unit(slice: u32, row: u32, along: u32) -> Unit``: a unit, ``row`` being its line or, of a stripe, its
          first one, and ``along`` its number along the sum; of what lies outside 0
        * ``fn <x>_write(slice: u32, row: u32, along: u32, unit: Unit, low: vec4<f32>, high: vec4<f32>)``, which leaves
          its halves, multiplied by these scales
        """
        x, operand = self.x, self.operand
        kernel.binding(Binding(f"{x}_halves", "u32", "read_write"), operand.temporary)
        kernel.param(f"{x}_rows", operand.rows)
        kernel.param(f"{x}_groups", self.groups)
        if self.batched:
            kernel.param(f"{x}_slice", operand.slice_numbers)
            kernel.param(f"{x}_{'lines' if self.k_major else 'stripes'}", self._each_slice())
        if operand.first:
            kernel.param(f"{x}_first", operand.first)
        kernel.add("\n".join([*self._unit(), *self._write()]))

    def _each_slice(self) -> int:
        return self.operand.lines if self.k_major else self.groups // self.operand.slices

    def _unit(self) -> Iterator[str]:
        x, dtype, runs = self.x, self.operand.dtype, self.operand.source.runs
        length = run_of(dtype) if runs else 1  # those that exist are whole groups
        loads = [self._loaded(ahead, length) for ahead in range(0, RUN, length)]
        if not runs and dtype == "bf16":
            pairs = zip(loads[::2], loads[1::2], strict=True)
            loads = [f"({first} >> 16u) | {second}" for first, second in pairs]
        elif not runs:
            half = RUN // 2
            loads = [f"vec4<u32>({', '.join(loads[first : first + half])})" for first in (0, half)]
        yield f"fn {x}_unit(slice: u32, row: u32, along: u32) -> Unit {{ return Unit({', '.join(loads)}); }}"

    def _loaded(self, ahead: int, length: int) -> str:
        """The words of ``length`` numbers, ``ahead`` of a unit's first."""
        x = self.x
        if self.k_major:
            inner = f"along * {RUN}u + {ahead}u"
            inside, row, step = f"{inner} < P.k", "row", f"min({inner}, P.k - {length}u)"
        else:
            inner, end = f"row + {ahead}u", f"P.{x}_rows"
            inside = f"(along < P.k) & ({inner} < {end})"
            row, step = f"min({inner}, {end} - {length}u)", "min(along, P.k - 1u)"
        at = f"{x}_row(slice, {row}), {x}_step(slice, {step})"
        if length > 1:
            return f"select(vec4<u32>(), {x}_run({at}), {inside})"
        return f"select(0u, bitcast<u32>({x}_value({at})), {inside})"

    def _write(self) -> Iterator[str]:
        x, count, part = self.x, self.operand.count, self.operand.part
        pitch = f"({count}u * P.padded)" if self.k_major else f"((P.{x}_rows + {RUN - 1}u) / {RUN}u * {RUN}u)"
        place = f"position / {part}u * {count * part}u + position % {part}u" if count > 1 else "position"
        base = f"slice * P.{x}_slice + " if self.batched else ""
        at = f"row * {pitch} + {place}" if self.k_major else f"({place}) * {pitch} + row"
        yield f"fn {x}_write(slice: u32, row: u32, along: u32, unit: Unit, low: vec4<f32>, high: vec4<f32>) {{"
        yield f"  let position = along{f' * {RUN}u' if self.k_major else ''};"
        yield f"  let at = ({base}{at}) / {RUN}u;"
        if count == 1:
            yield f"  {x}_halves_store4(at, half_of(unit, low, high));"
        else:
            lower = f"{part // RUN}u" if self.k_major else f"{part}u * ({pitch} / {RUN}u)"
            yield "  let first = halves_of(unit.low, low);"
            yield "  let second = halves_of(unit.high, high);"
            yield f"  {x}_halves_store4(at, vec4<u32>(first.xy, second.xy));"
            yield f"  {x}_halves_store4(at + {lower}, vec4<u32>(first.zw, second.zw));"
        yield "}"


def halving_launch(tensors: Sequence[Strided], operands: Sequence[Halved]) -> Launch:
    """The launch that writes both operands' halves, and the exponents of their lines."""
    kernel, _ = tensors_draft(tensors)
    kernel.binding(Binding("exponents", "i32", "read_write"), operands[0].exponents)
    kernel.param("k", operands[0].k)
    kernel.param("padded", operands[0].padded)
    kernel.add(wgsl_source("matmul/scaled"), wgsl_source(f"matmul/halves_{tensors[0].dtype}"))
    # Stripes first: a workgroup takes longer for one than for a few lines.
    shares = sorted(map(Shares.of, operands), key=lambda share: share.k_major)
    for share in shares:
        share.add(kernel)
    lines = max(share.lines for share in shares)
    main = render("matmul/halving", shares=shares, threads=WORKGROUP, run=RUN, lines=lines)
    groups = sum(share.groups for share in shares)
    return kernel.build("matmul_halves", [f"{main}\n"], WORKGROUP, grid_for(groups * WORKGROUP))
