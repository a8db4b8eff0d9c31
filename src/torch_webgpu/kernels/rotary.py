"""Rotary position embeddings as language models write them: ``x * cos + cat((-x2, x1)) * sin`` over halves of heads."""

from __future__ import annotations

from torch_webgpu.ir.graph import Extern, Operation
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.wgsl.launch import Lowered
from torch_webgpu.wgsl.link import HostCaps

from .points import PointKernel, source

COORDINATES = ("b", "h", "s", "d")


def extern() -> Extern:
    """Arguments: x (B, H, S, D), cos and sin, which broadcast to it → of x's shape. D is even; floating types."""
    return Extern(lower_rotary)


def lower_rotary(op: Operation, alias: tuple[int, ...], caps: HostCaps) -> Lowered:
    *inputs, y = op.args
    kernel = PointKernel("rotary", caps, COORDINATES)
    for k, (name, spec) in enumerate(zip(("x", "cos", "sin"), inputs, strict=True)):
        strides = broadcast_strides(spec.shape, spec.strides, y.shape)
        kernel.input(name, k, spec._replace(shape=y.shape, strides=strides))
    kernel.param("half", y.shape[3] // 2)
    kernel.output("y", 3, y)
    return Lowered((kernel.launch(source("rotary")),))
