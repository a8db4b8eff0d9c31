"""The negative log likelihood at targets: one gather per target, with its class's weight."""

from __future__ import annotations

from torch_webgpu.ir.operation import Operation
from torch_webgpu.kernels.points import PointKernel, arithmetic, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import ERROR_FLAGS, Binding
from torch_webgpu.wgsl.launch import ERRORS, Lowered, Source

COORDINATES = ("n", "h", "w")


def lower_nll(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Arguments: input (N, C, H, W), target (N, H, W), [weight (C)], loss and share (N, H, W); scalar 0 is ignored."""
    has_weight = op.n_inputs == 3
    x, labels = op.args[0], op.args[1]
    loss = op.n_inputs
    kernel = PointKernel(op.name, target, COORDINATES)
    pixels = x._replace(shape=(x.shape[0], *x.shape[2:]), strides=(x.strides[0], *x.strides[2:]))
    kernel.add(arithmetic(x.dtype))
    kernel.input("input", 0, pixels)
    kernel.input("target", 1, labels)
    kernel.param("classes", x.shape[1])
    kernel.param("class_step", x.strides[1])
    kernel.param("ignored_low", Source("scalar", 0))
    kernel.param("ignored_high", Source("scalar", 1))
    kernel.param("op", op.id)
    if has_weight:
        kernel.binding(Binding("weight", op.args[2].dtype), 2)
        kernel.param("weight_offset", Source("offset", 2))
        kernel.param("weight_step", op.args[2].strides[0])
        kernel.add("fn weight_of(c: u32) -> T { return weight_load(P.weight_offset + c * P.weight_step); }")
    else:
        kernel.add("fn weight_of(c: u32) -> T { return T(1.0); }")
    kernel.binding(ERROR_FLAGS, ERRORS)
    kernel.output("loss", loss, op.args[loss])
    kernel.output("share", loss + 1, op.args[loss + 1])
    return Lowered((kernel.launch(wgsl_source("losses/nll")),))
