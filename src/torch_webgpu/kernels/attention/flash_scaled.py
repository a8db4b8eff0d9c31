"""Attention over tiles of scores of bfloat16 on subgroup matrices of float16: see :mod:`..matmul.scaled`.

Each operand is multiplied by a power of two as it is brought to workgroup memory, and what it is multiplied into by the
inverse. Slopes of scores, which float16 has to hold as well, are scaled by what the largest gradients and values could
make of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.scaled import GROUPS, exponent_lines, read_scales, scaled_run
from torch_webgpu.kernels.points import Draft, wgsl_source
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import WORKGROUP, Launch, Lowered

from .attention import QUERY
from .flash_problem import Declare, Flash

NamedSpecs = Sequence[tuple[str, int, Spec]]
"""Names, arguments and layouts."""
PRODUCTS = (("q", "k"), ("v",))
PRODUCTS_BACKWARD = (("q", "k"), ("g", "v"), ("slope", "k"), ("slope", "q"), ("g",))
"""What sums are products of: weights have no scale."""
HEADROOM = 16
"""The slope of a score is less than two sums of products of numbers below 2 ** 15: by 16 powers of two more than a
float16, and by those of the number of products.
"""
FUNCTION_HEADROOM = 4
"""For what a function of scores multiplies slopes by, in powers of two."""


class Scaling:
    """What the text of a kernel says of scales; nothing if its operands are float16."""

    def __init__(self, p: Flash) -> None:
        operands = p.multiplied
        self.names = [name for name, _, _ in operands]
        self.headroom = HEADROOM + FUNCTION_HEADROOM * p.has_slope
        self.is_needed = operands[0][2].dtype == "bf16"

    def read(self, draft: Draft, scales: int) -> None:
        """Gives the kernel the largest magnitudes, which are temporary ``scales``."""
        if self.is_needed:
            read_scales(draft, scales)

    def start(self, value_width: int) -> Iterator[str]:
        """Declares the scales, and the exponent of slopes, whose products are of lines of ``value_width``."""
        if not self.is_needed:
            return
        for n, x in enumerate(self.names):
            yield from exponent_lines(x, n)
        if "g" in self.names:
            least = self.headroom + (value_width - 1).bit_length()
            yield f"  let slope_exponent = clamp(g_exponent + v_exponent - {least}, -126, 126);"
            yield "  let slope_scale = factors_back(-slope_exponent);"
        for product in PRODUCTS_BACKWARD if "g" in self.names else PRODUCTS:
            yield f"  let {'_'.join(product)}_back = factors_back({' + '.join(f'{x}_exponent' for x in product)});"

    def brought(self, x: str, run: str) -> str:
        """A run of operand ``x`` as it is multiplied."""
        return scaled_run(x, run) if self.is_needed else run

    def back(self, value: str, *operands: str) -> str:
        """``value``, a sum of products of these, without their scales."""
        if not self.is_needed:
            return value
        factors = f"{'_'.join(operands)}_back"
        return f"({value} * {factors}.x * {factors}.y)"

    def slope(self, value: str) -> str:
        """A slope as it is multiplied."""
        return f"({value} * slope_scale.x * slope_scale.y)" if self.is_needed else value


def lowered(launch: Launch, p: Flash, operands: NamedSpecs, declare: Declare, scales: int) -> Lowered:
    """``launch``, after one that finds the largest magnitudes, if it needs them."""
    if not Scaling(p).is_needed:
        return Lowered((launch,))
    return Lowered((largest_launch(p, operands, declare, scales), launch), (4 * len(operands),), (0,))


def largest_launch(p: Flash, operands: NamedSpecs, declare: Declare, scales: int) -> Launch:
    """The launch that leaves the bits of each operand's largest finite magnitude in temporary ``scales``, which is zero
    before.
    """
    draft = Draft(QUERY)
    for name, arg, spec in operands:
        declare(draft, name, arg, spec)
    draft.param("queries", p.q.shape[2])
    draft.param("keys", p.k.shape[2])
    draft.binding(Binding("scales", "u32", "read_write", "atomic"), scales)
    draft.add(wgsl_source("matmul/scaled"))
    lines = [
        f"var<workgroup> largest: array<atomic<u32>, {len(operands)}>;",
        f"@compute @workgroup_size({WORKGROUP})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
        f"  if (lid < {len(operands)}u) {{ atomicStore(&largest[lid], 0u); }}",
        "  workgroupBarrier();",
    ]
    most = 1
    for number, (name, _, spec) in enumerate(operands):
        _, heads, count, width = spec.shape
        runs, lines_text = width // 8, draft.params.add(f"{name}_lines", count)
        total = prod(spec.shape) // 8
        most = max(most, total)
        lines += [
            "  {",
            "    var most = 0u;",
            f"    let total = {draft.params.add(f'{name}_total', total)};",
            f"    for (var i = wid.x * {WORKGROUP}u + lid; i < total; i += nwg.x * {WORKGROUP}u) {{",
            f"      let line = i / {runs}u;",
            f"      let above = line / {lines_text};",
            f"      let run = {name}_run(above / {heads}u, above % {heads}u, line % {lines_text}, i % {runs}u);",
            "      most = max(most, largest_of_bf16(run));",
            "    }",
            f"    atomicMax(&largest[{number}], most);",
            "  }",
        ]
    lines += [
        "  workgroupBarrier();",
        f"  if (lid < {len(operands)}u) {{ scales_atomic_max(lid, atomicLoad(&largest[lid])); }}",
        "}",
    ]
    return draft.build("flash_attention_largest", lines, WORKGROUP, (min(GROUPS, -(-most // WORKGROUP)), 1, 1))
