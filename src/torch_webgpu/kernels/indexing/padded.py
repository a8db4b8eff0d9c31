"""Sequences of several lengths, one after the other, as a padded batch."""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, arithmetic, locator, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered, Source

COORDINATES = ("sequence", "row", "column")


def lower_padded(op: Operation, alias: tuple[int, ...], target: Target, padding: float) -> Lowered:
    """For arguments (rows (L, D), contiguous offsets (B + 1), batch (B, N, D)). Offsets beyond L count as L."""
    rows, offsets, batch = op.args
    kernel = PointKernel("padded", target, COORDINATES)
    kernel.add(arithmetic(rows.dtype))
    kernel.param("padding", padding, "f32")
    kernel.param("offsets_offset", Source("offset", 1))
    kernel.param("length", rows.shape[0])
    kernel.binding(Binding("rows", rows.dtype), 0)
    kernel.add(locator(kernel.params, "rows", 0, COORDINATES, (0, *rows.strides)))
    kernel.binding(Binding("offsets", offsets.dtype), 1)
    loaded = "offsets_load(P.offsets_offset + i)"
    number = f"i64_to_u32({loaded})" if BY_NAME[offsets.dtype].kind == "l" else f"u32({loaded})"
    kernel.add(f"fn offset_at(i: u32) -> u32 {{ return min({number}, P.length); }}")
    kernel.output("batch", 2, batch)
    return Lowered((kernel.launch(wgsl_source("indexing/padded")),))
