"""``grid_sampler_2d`` and ``grid_sampler_3d`` with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from torch_webgpu.engine.record import engine
from torch_webgpu.ir.graph import Extern
from torch_webgpu.kernels import grid_sample
from torch_webgpu.kernels.grid_sample import Sampling

from .deterministic import alert_not_deterministic, by_mode
from .fallback import run_on_cpu
from .results import not_implemented
from .torch_abi import aten, outputs_of
from .variants import register_functional

REASON = "sampling positions are computed in float32"


def record(
    name: str,
    inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
    body: Callable[[Sampling], Extern],
    s: Sampling,
) -> torch.Tensor:
    if not out.numel():
        return out
    if not all(t.numel() for t in inputs):
        return out.zero_()
    engine().record(name, inputs, [out], lambda specs: body(s), static=s)
    return out


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
        (out,) = outputs_of(forward, input, grid, *options)
        return record(f"aten.grid_sampler_{dims}d", [input, grid], out, grid_sample.forward, Sampling(dims, *options))

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
        s, name = Sampling(dims, *options), f"aten.grid_sampler_{dims}d_backward"
        grad_input = None
        if output_mask[0]:
            alert_not_deterministic(f"grid_sampler_{dims}d_backward_webgpu")
            grad_input = torch.empty_like(input, memory_format=torch.contiguous_format)
            record(f"{name}.input", [grad_output, grid], grad_input, grid_sample.image_gradient, s)
        grad_grid = torch.empty_like(grid, memory_format=torch.contiguous_format)
        record(f"{name}.grid", [grad_output, grid, input], grad_grid, grid_sample.grid_gradient, s)
        return grad_input, grad_grid

    register_functional(forward, sample)
    register_functional(backward, by_mode(sample_backward))


def register() -> None:
    grid_sampler(2)
    grid_sampler(3)
