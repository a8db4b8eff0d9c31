"""Batch normalisation and its gradient. The kernel that finds the moments updates the running statistics in place.

The statistics saved for the gradient of half-width inputs are float32, as CUDA's are; the CPU's have the input's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.dispatch.variants import register_functional
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Pointwise, Spec
from torch_webgpu.ir.ops import ops

from .norm import Maybe, Written, affine, having, present, spread_out
from .reduce import number, own, record_reduction


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
    has = having(*parameters)

    def write(x: Expr, *rest: Expr) -> Written:
        x = own(x)
        scale, shift, *running = spread_out(rest, has)

        def finish(mean: Expr, m2: Expr, n: Expr) -> tuple[Expr, ...]:
            rstd = ops.rsqrt(m2 / n + ops.param(0, n.dtype))
            momentum = ops.param(1, n.dtype)
            updated = [
                old + momentum * (new - old) for old, new in zip(running, (mean, m2 / (n - 1.0))) if old is not None
            ]
            return mean, rstd, *updated, affine((x - mean) * rstd, scale, shift)

        return (x,), ("welford",), finish

    if out.numel():
        record_reduction(
            "aten::native_batch_norm",
            [input, *present(*parameters)],
            [*moments, out],
            input.shape,
            other_dims(input),
            write,
            maps=1,
            static=has,
            scalars=[number(eps, input.dtype), number(momentum, input.dtype)],
        )
    return out, mean, rstd


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
    has = having(*parameters)

    def body(specs: tuple[Spec, ...]) -> Pointwise:
        x, *rest = (ops.load(k, spec.dtype) for k, spec in enumerate(specs[:-1]))
        mean, var, scale, shift = spread_out(rest, has)
        rstd = ops.rsqrt(var + ops.param(0, var.dtype))
        return Pointwise((ops.to_dtype(affine((own(x) - mean) * rstd, scale, shift), specs[-1].dtype),))

    if out.numel():
        scalars = [number(eps, input.dtype)]
        engine().record("aten::native_batch_norm.eval", [input, *present(*parameters)], [out], body, has, scalars)


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
    asked, has_weight = tuple(output_mask), weight is not None

    def write(grad: Expr, x: Expr, mean: Expr, spread: Expr, *rest: Expr) -> Written:
        grad, x, mean, spread = map(own, (grad, x, mean, spread))
        rstd = spread if train else ops.rsqrt(spread + ops.param(1, x.dtype))
        normal = (x - mean) * rstd
        scale = rstd * own(rest[0]) if has_weight else rstd

        def finish(total: Expr, product: Expr) -> tuple[Expr, ...]:
            n = ops.param(0, x.dtype)
            centred = grad - total / n - normal * (product / n) if train else grad
            return tuple(v for v, wanted in zip((product, total, centred * scale), (*asked[1:], asked[0])) if wanted)

        return (grad, grad * normal), ("sum", "sum"), finish

    if outputs:
        count = input.numel() // input.shape[1]
        record_reduction(
            "aten::native_batch_norm_backward",
            [grad_out, input, *present(*parameters)],
            outputs,
            input.shape,
            other_dims(input),
            write,
            maps=int(asked[0]),
            static=(asked, train, has_weight),
            scalars=[number(count, input.dtype), number(eps, input.dtype)],
        )
    return grad_input, *sums


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
        register_functional(overload, kernel)
