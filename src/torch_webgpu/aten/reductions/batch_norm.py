"""Batch normalisation and its gradient. The kernel that finds the moments updates the running statistics in place.

The statistics saved for the gradient of half-width inputs are float32, as CUDA's are; the CPU's have the input's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torch_webgpu.aten.dispatch.operations import Fold, record_pointwise, record_reduction
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.dispatch.torch_compositions import record_composition
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .norm import affine, having, present, spread_out
from .reduce import number, own


def over_channels(t: Maybe, rank: int) -> Maybe:
    """(C,) as (1, C, 1, …) of ``rank`` dimensions."""
    return None if t is None else t.view(1, -1, *[1] * (rank - 2))


def other_dims(t: torch.Tensor) -> tuple[int, ...]:
    return (0, *range(2, t.dim()))


def batch_norm(
    input: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and in training the batch's mean and 1 / deviation (empty tensors otherwise)."""
    input.size(1)  # raises where there is no channel dimension
    _, mean, rstd = outputs_of(
        aten.native_batch_norm.default, input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    out = torch.empty_like(input, memory_format=suggest_memory_format(input))
    if not training:
        assert running_mean is not None
        assert running_var is not None
        normalise_by(running_mean, running_var, input, weight, bias, out, eps)
        return out, mean.new_empty(0), rstd.new_empty(0)
    parameters = [over_channels(t, input.dim()) for t in (weight, bias, running_mean, running_var)]
    moments = present(*(over_channels(t, input.dim()) for t in (mean, rstd)), *parameters[2:])
    if out.numel():
        record_reduction(
            "aten::native_batch_norm",
            [input, *present(*parameters)],
            [*moments, out],
            input.shape,
            other_dims(input),
            normal_with_update,
            (having(*parameters),),
            maps=1,
            scalars=[number(eps, input.dtype), number(momentum, input.dtype)],
        )
    return out, mean, rstd


def normal_with_update(has: tuple[bool, ...], x: Expr, *rest: Expr) -> Fold:
    """The moments, the running statistics with them, and x normalised by them. Scalars: epsilon, momentum."""
    x = own(x)
    scale, shift, *running = spread_out(rest, has)

    def epilogue(mean: Expr, m2: Expr, n: Expr) -> tuple[Expr, ...]:
        rstd = ops.rsqrt(m2 / n + ops.param(0, n.dtype))
        momentum = ops.param(1, n.dtype)
        updated = [old + momentum * (new - old) for old, new in zip(running, (mean, m2 / (n - 1.0))) if old is not None]
        return mean, rstd, *updated, affine((x - mean) * rstd, scale, shift)

    return Fold((x,), ("welford",), epilogue)


def normalise_by(
    mean: torch.Tensor,
    var: torch.Tensor,
    input: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    out: torch.Tensor,
    eps: float,
) -> None:
    """Writes ``input`` normalised by given statistics to ``out``."""
    parameters = [over_channels(t, input.dim()) for t in (mean, var, weight, bias)]
    inputs, arguments = [input, *present(*parameters)], (having(*parameters),)
    record_pointwise("aten::native_batch_norm.eval", inputs, [out], normal_by, arguments, [number(eps, input.dtype)])


def normal_by(has: tuple[bool, ...], x: Expr, *rest: Expr) -> Expr:
    mean, var, scale, shift = spread_out(rest, has)
    rstd = ops.rsqrt(var + ops.param(0, var.dtype))
    return affine((own(x) - mean) * rstd, scale, shift)


def batch_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    grad_input = torch.empty_like(input) if output_mask[0] else None
    like = input if weight is None else weight
    sums = [like.new_empty(input.shape[1]) if asked else None for asked in output_mask[1:]]
    outputs = [*present(*sums), *present(grad_input)]
    if not input.numel():
        return grad_input, *(None if t is None else t.zero_() for t in sums)
    statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
    parameters = [over_channels(t, input.dim()) for t in (*statistics, weight)]
    if outputs:
        count = input.numel() // input.shape[1]
        record_reduction(
            "aten::native_batch_norm_backward",
            [grad_out, input, *present(*parameters)],
            outputs,
            input.shape,
            other_dims(input),
            gradients,
            (tuple(output_mask), train, weight is not None),
            maps=int(output_mask[0]),
            scalars=[number(count, input.dtype), number(eps, input.dtype)],
        )
    return grad_input, *sums


def gradients(
    wanted: tuple[bool, ...], train: bool, has_weight: bool, grad: Expr, x: Expr, mean: Expr, spread: Expr, *rest: Expr
) -> Fold:
    """Those of weight, bias and input that are ``wanted`` (input first). Scalars: how many points, epsilon."""
    grad, x, mean, spread = map(own, (grad, x, mean, spread))
    rstd = spread if train else ops.rsqrt(spread + ops.param(1, x.dtype))
    normal = (x - mean) * rstd
    scale = rstd * own(rest[0]) if has_weight else rstd

    def epilogue(total: Expr, product: Expr) -> tuple[Expr, ...]:
        n = ops.param(0, x.dtype)
        centred = grad - total / n - normal * (product / n) if train else grad
        return tuple(v for v, asked in zip((product, total, centred * scale), (*wanted[1:], wanted[0])) if asked)

    return Fold((grad, grad * normal), ("sum", "sum"), epilogue)


# Other spellings ------------------------------------------------------------------------------------------------------


def no_stats(
    input: torch.Tensor, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return batch_norm(input, weight, bias, None, None, training, momentum, eps)


def no_training(
    input: torch.Tensor, weight: Maybe, bias: Maybe, mean: torch.Tensor, var: torch.Tensor, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return batch_norm(input, weight, bias, mean, var, False, momentum, eps)


def functional(
    input: torch.Tensor, weight: Maybe, bias: Maybe, mean: torch.Tensor, var: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """As ``_native_batch_norm_legit``, but the updated running statistics are returned, not written."""
    mean, var = mean.clone(), var.clone()
    return *batch_norm(input, weight, bias, mean, var, *rest), mean, var


def with_update(
    input: torch.Tensor, weight: Maybe, bias: Maybe, mean: torch.Tensor, var: torch.Tensor, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return *batch_norm(input, weight, bias, mean, var, True, momentum, eps), reserve(input)


def no_update(
    input: torch.Tensor, weight: Maybe, bias: Maybe, mean: Maybe, var: Maybe, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return *batch_norm(input, weight, bias, mean, var, False, momentum, eps), reserve(input)


def reserve(input: torch.Tensor) -> torch.Tensor:
    """What cuDNN keeps for its backward: nothing here."""
    return input.new_empty(0, dtype=torch.uint8)


def backward_of_update(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: torch.Tensor,
) -> tuple[Maybe, ...]:
    return batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


def updates(
    input: torch.Tensor, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, training: bool, *rest: Any
) -> bool:
    """Whether a call of ``torch.batch_norm`` normalizes by the batch's statistics, and may keep them."""
    return training


def composed(
    parts: Callable[..., torch.Tensor], input: torch.Tensor, weight: Maybe, bias: Maybe, *rest: Any
) -> torch.Tensor:
    """PyTorch's composition. Of no elements it makes float64 statistics, which few adapters have; nobody sees those."""
    if input.numel():
        return parts(input, weight, bias, *rest)
    y = input.clone()
    y = y if weight is None else y * weight[0]
    return y if bias is None else y + bias[0]


def register() -> None:
    for overload, kernel in (
        (aten.native_batch_norm.default, batch_norm),
        (aten._native_batch_norm_legit.default, batch_norm),
        (aten._native_batch_norm_legit.no_stats, no_stats),
        (aten._native_batch_norm_legit_no_training.default, no_training),
        (aten._native_batch_norm_legit_functional.default, functional),
        (aten.native_batch_norm_backward.default, batch_norm_backward),
        (aten._batch_norm_with_update.default, with_update),
        (aten._batch_norm_no_update.default, no_update),
        (aten.batch_norm_backward.default, backward_of_update),
    ):
        register_operator(overload, kernel)
    record_composition(aten.batch_norm.default, composes=updates, instead=composed)
