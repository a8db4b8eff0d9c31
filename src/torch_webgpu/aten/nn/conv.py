"""Convolutions: what ``conv1d`` … ``conv_transpose3d`` come down to on a device with kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch._prims_common import suggest_memory_format

from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import not_implemented
from torch_webgpu.aten.dispatch.torch_abi import Meta, aten, infer
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.conv.conv import are_few, extern
from torch_webgpu.kernels.conv.conv_layout import multiplications, multiplies_runs
from torch_webgpu.kernels.conv.conv_problem import Geometry
from torch_webgpu.kernels.matmul.operand import run_of

COPIED_WORK = 1 << 25
"""Products from which on copying the weights takes less time than it saves."""
COPIED_RUNS_WORK = 1 << 29
"""The same of copying both operands for tensor cores."""


def recorded(
    mode: str,
    inputs: Sequence[torch.Tensor],
    geometry: Geometry,
    outputs: list[Meta],
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """One of the three products of :mod:`torch_webgpu.kernels.conv.conv`; sums over nothing are zero."""
    y = outputs[0][0] if mode == "forward" else inputs[0].shape
    w = outputs[0][0] if mode == "weight" else inputs[1].shape
    inputs = in_runs(inputs, y, w, geometry)
    if mode != "weight":
        inputs = [inputs[0], by_channel(inputs[1], mode, inputs[0], outputs[0], geometry.groups)]
    per_channel = None if bias is None else bias.view(-1, *[1] * len(geometry.stride))
    body = extern(mode, geometry, dtype_of(inputs[0].dtype).name, bias is not None)
    tensors = inputs if per_channel is None else [*inputs, per_channel]
    (out,) = kernel_outputs(f"aten.convolution_{mode}", tensors, outputs, body)
    return out if per_channel is None or all(t.numel() for t in inputs) else out.copy_(per_channel)


def in_runs(
    tensors: Sequence[torch.Tensor], y: Sequence[int], w: Sequence[int], geometry: Geometry
) -> Sequence[torch.Tensor]:
    """The operands of a convolution with results of shape ``y`` and weights of shape ``w``; copies whose channels lie
    last where tensor cores multiply these in whole runs.
    """
    first, work = tensors[0], multiplications(y, w)
    if work < COPIED_RUNS_WORK:
        return tensors
    dtype = dtype_of(first.dtype).name
    if not multiplies_runs(engine().device(first.get_device()).target, dtype, w, work):
        return tensors
    is_matrix = geometry.is_pointwise(prod(w[2:])) and geometry.groups == 1
    if is_matrix and prod(y[2:]) % run_of(dtype) == 0:  # runs of positions do as well
        return tensors
    return [t.movedim(1, -1).contiguous().movedim(-1, 1) for t in tensors]


def by_channel(weight: torch.Tensor, mode: str, input: torch.Tensor, output: Meta, groups: int) -> torch.Tensor:
    """``weight``; a copy whose channels are neighbours in memory where neighbouring threads compute neighbouring
    channels, each of which would read a line of its own of a depthwise convolution's weights.
    """
    taps, strides = prod(weight.shape[2:]), output[1]
    if input.numel() * taps < COPIED_WORK or strides[1] > strides[-1] or weight.stride(0) == 1:
        return weight
    channels = weight.shape[0] // groups
    rows, depth = (channels, weight.shape[1]) if mode == "forward" else (weight.shape[1], channels)
    return weight.movedim(0, -1).contiguous().movedim(-1, 0) if are_few(rows, depth * taps, mode) else weight


def memory_format(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """That of all results of a convolution of these two: channels last if one of them is, as on the CPU and on CUDA."""
    formats = [suggest_memory_format(t) for t in (input, weight)]
    return next((f for f in formats if f != torch.contiguous_format), torch.contiguous_format)


def in_format(shape: Sequence[int], dtype: torch.dtype, format: torch.memory_format) -> list[Meta]:
    """The one result of ``shape``, laid out in ``format``."""
    made = torch.empty(tuple(shape), dtype=dtype, device="meta", memory_format=format)
    return [(tuple(made.shape), made.stride(), dtype)]


def geometry_of(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, dims: int
) -> Geometry:
    def full(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) * dims if len(values) == 1 else tuple(values)

    return Geometry(full(stride), full(padding), full(dilation), groups)


def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """input (N, C, *size), weight (O, C / groups, *kernel) or, transposed, (C, O / groups, *kernel), bias (O)."""

    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.dtype != input.dtype:
            raise RuntimeError(f"Input type ({input.type()}) and {name} type ({t.type()}) should be the same")
    if input.dtype == torch.bool:
        raise not_implemented(f"slow_conv{input.dim() - 2}d_cpu", input.dtype)
    arguments = (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    ((shape, _, dtype),) = infer(aten.convolution.default, *arguments)
    outputs = in_format(shape, dtype, memory_format(input, weight))
    geometry = geometry_of(stride, padding, dilation, groups, input.dim() - 2)
    return recorded("adjoint" if transposed else "forward", [input, weight], geometry, outputs, bias)


def convolution_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of input, weight and bias; None for those that ``output_mask`` leaves out."""
    geometry = geometry_of(stride, padding, dilation, groups, input.dim() - 2)
    grad_input = grad_weight = grad_bias = None
    format = memory_format(input, weight)

    def like(t: torch.Tensor) -> list[Meta]:
        return in_format(t.shape, t.dtype, format)

    if output_mask[0] and output_mask[1]:  # both read these
        y = input.shape if transposed else grad_output.shape
        grad_output, input, weight = in_runs([grad_output, input, weight], y, weight.shape, geometry)

    if output_mask[0]:
        mode = "forward" if transposed else "adjoint"
        grad_input = recorded(mode, [grad_output, weight], geometry, like(input))
    if output_mask[1]:
        # The one that the convolution (not its adjoint) yields comes first.
        pair = [input, grad_output] if transposed else [grad_output, input]
        grad_weight = recorded("weight", pair, geometry, like(weight))
    if output_mask[2]:
        grad_bias = grad_output.sum([0, *range(2, grad_output.dim())])
    return grad_input, grad_weight, grad_bias


def register() -> None:
    register_operator(aten.convolution_overrideable.default, convolution)
    register_operator(aten.convolution_backward_overrideable.default, convolution_backward)
