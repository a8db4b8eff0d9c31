"""``grid_sampler_2d`` and ``grid_sampler_3d`` with their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.deterministic import alert_not_deterministic
from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import not_implemented
from torch_webgpu.aten.dispatch.torch_abi import Meta, aten, infer
from torch_webgpu.kernels.spatial import grid_sample
from torch_webgpu.kernels.spatial.grid_sample import Sampling
from torch_webgpu.layout import contiguous_strides

REASON = "sampling positions are computed in float32"


def like(t: torch.Tensor) -> list[Meta]:
    """The layout of a contiguous tensor of the shape and dtype of ``t``."""
    return [(tuple(t.shape), contiguous_strides(t.shape), t.dtype)]


def grid_sampler(dims: int) -> None:
    """Registers ``grid_sampler_<dims>d`` and its backward."""
    forward: OpOverload = getattr(aten, f"grid_sampler_{dims}d").default
    backward: OpOverload = getattr(aten, f"grid_sampler_{dims}d_backward").default

    def sample(
        input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
    ) -> torch.Tensor:
        options = (interpolation_mode, padding_mode, align_corners)
        if not input.is_floating_point():
            raise not_implemented(f"grid_sampler_{dims}d_cpu_kernel_impl", input.dtype)
        if input.dtype == torch.float64:
            return run_on_cpu(forward, (input, grid, *options), {}, REASON)
        outputs, s = infer(forward, input, grid, *options), Sampling(dims, *options)
        (out,) = kernel_outputs(forward._schema.name, [input, grid], outputs, grid_sample.forward(s))
        return out

    def sample_backward(
        grad_output: torch.Tensor,
        input: torch.Tensor,
        grid: torch.Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        options = (interpolation_mode, padding_mode, align_corners)
        if input.dtype == torch.float64:
            arguments = (grad_output, input, grid, *options, output_mask)
            return run_on_cpu(backward, arguments, {}, REASON)
        s, name, grad_input = Sampling(dims, *options), backward._schema.name, None
        if output_mask[0]:
            alert_not_deterministic(f"grid_sampler_{dims}d_backward_webgpu")
            inputs = [grad_output, grid]
            (grad_input,) = kernel_outputs(f"{name}.input", inputs, like(input), grid_sample.image_gradient(s))
        inputs = [grad_output, grid, input]
        (grad_grid,) = kernel_outputs(f"{name}.grid", inputs, like(grid), grid_sample.grid_gradient(s))
        return grad_input, grad_grid

    register_operator(forward, sample)
    register_operator(backward, sample_backward, by_mode=True)


def register() -> None:
    grid_sampler(2)
    grid_sampler(3)
