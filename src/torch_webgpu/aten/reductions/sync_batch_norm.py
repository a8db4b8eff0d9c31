"""The operators of ``torch.nn.SyncBatchNorm``: batch normalisation in parts, between which processes exchange sums.

Statistics have at least float32, as CUDA's have.
"""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import aten

from .batch_norm import other_dims, over_channels


def wide(t: torch.Tensor) -> torch.Tensor:
    """In the dtype of sums."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def channels(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(C,) as ``like`` has its channels, in the dtype of sums."""
    spread = over_channels(wide(t), like.dim())
    assert spread is not None
    return spread


def stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and 1 / deviation of each channel."""
    var, mean = torch.var_mean(wide(input), other_dims(input), correction=0)
    return mean, torch.rsqrt(var + eps)


def gather_stats_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The statistics of all processes from those of each, (processes, C) and (processes,); updates the running ones."""
    mean, invstd = wide(mean), wide(invstd)
    share = counts.to(mean.dtype).unsqueeze(1)
    total = share.sum()
    whole = (mean * share).sum(0) / total
    var = ((invstd.pow(-2) - eps + (mean - whole).square()) * share).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((var * (total / (total - 1))).to(running_var.dtype), momentum)
    return whole, torch.rsqrt(var + eps)


def gather_stats(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`gather_stats_with_counts` of processes with as many elements each."""
    counts = torch.full((mean.size(0),), float(count), dtype=wide(mean).dtype, device=mean.device)
    return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def elemt(
    input: torch.Tensor, weight: Maybe, bias: Maybe, mean: torch.Tensor, invstd: torch.Tensor, eps: float
) -> torch.Tensor:
    """The input normalised by given statistics."""
    out = (wide(input) - channels(mean, input)) * channels(invstd, input)
    if weight is not None:
        out = out * channels(weight, input)
    if bias is not None:
        out = out + channels(bias, input)
    return out.to(input.dtype)


def backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Maybe,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Maybe, Maybe, Maybe, Maybe]:
    """The sums that the gradient of the input needs of all processes, and the gradients of weight and bias."""
    grad, dims = wide(grad_out), other_dims(input)
    total = grad.sum(dims)
    product = (grad * (wide(input) - channels(mean, input))).sum(dims)
    dtype = input.dtype if weight is None else weight.dtype
    return (
        total if input_g else None,
        product if input_g else None,
        (product * wide(invstd)).to(dtype) if weight_g else None,
        total.to(dtype) if bias_g else None,
    )


def backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Maybe,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the input, from the sums and the counts of all processes."""
    n, scale = count.sum().to(wide(sum_dy).dtype), channels(invstd, input)
    centred = wide(grad_out) - channels(sum_dy, input) / n
    grad = centred - (wide(input) - channels(mean, input)) * scale.square() * (channels(sum_dy_xmu, input) / n)
    grad = grad * scale
    return (grad if weight is None else grad * channels(weight, input)).to(input.dtype)


def register() -> None:
    for overload, kernel in (
        (aten.batch_norm_stats.default, stats),
        (aten.batch_norm_gather_stats_with_counts.default, gather_stats_with_counts),
        (aten.batch_norm_gather_stats.default, gather_stats),
        (aten.batch_norm_elemt.default, elemt),
        (aten.batch_norm_backward_reduce.default, backward_reduce),
        (aten.batch_norm_backward_elemt.default, backward_elemt),
    ):
        register_operator(overload, kernel)
