"""Reductions of segments: each element of the result is a loop over elements that lie after each other."""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, arithmetic, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS
from torch_webgpu.wgsl.launch import ERRORS, Lowered

COORDINATES = ("line", "segment", "inner")
IDENTITIES = {"sum": "T(0.0)", "prod": "T(1.0)", "max": "T(-inf_f())", "min": "T(inf_f())"}
ROWS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def lower_segment(op: Operation, alias: tuple[int, ...], target: Target, reduce: str, checks: bool) -> Lowered:
    """Arguments: data (lines, length, inner), offsets (lines, segments + 1), int32, and (lines, segments, inner).

    ``checks``: flags offsets that are not in order, or do not end with the line.
    """
    data, offsets, out = op.args
    kernel = PointKernel("segment_reduce", target, COORDINATES)
    kernel.add(arithmetic(data.dtype, ROWS[reduce]))
    kernel.input("data", 0, data)
    kernel.input("offsets", 1, offsets._replace(strides=(*offsets.strides, 0)))
    kernel.param("op", op.id)
    kernel.param("checks", int(checks))
    kernel.param("length", data.shape[1])
    kernel.param("segments", out.shape[1])
    kernel.binding(ERROR_FLAGS, ERRORS)
    kernel.output("out", 2, out)
    assert BY_NAME[data.dtype].kind in "fd", data.dtype
    text = wgsl_source("indexing/segment").replace("IDENTITY", IDENTITIES[reduce]).replace("REDUCE", ROWS[reduce])
    return Lowered((kernel.launch(text),))
