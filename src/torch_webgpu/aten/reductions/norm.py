"""Normalisation layers and their gradients: layer, RMS, group and batch norm.

Each forward and each input gradient is one reduction that stores every point once the moments are known; the gradients
of weight and bias are reductions over the other dimensions. Statistics are computed in f32 for the half types.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import Fold, record_reduction
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.dispatch.torch_compositions import record_composition
from torch_webgpu.compiler.fuse.group import ORDERED_NUMEL
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .reduce import itself, number, own


def present(*tensors: Maybe) -> list[torch.Tensor]:
    return [t for t in tensors if t is not None]


def having(*tensors: Maybe) -> tuple[bool, ...]:
    return tuple(t is not None for t in tensors)


def spread_out(elements: Sequence[Expr], has: Sequence[bool]) -> list[Any]:
    """``elements`` of the tensors that are present, with None where one is absent."""
    rest = iter(elements)
    return [own(next(rest)) if there else None for there in has]


def affine(x: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def record_normal(
    name: str,
    x: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    outputs: Sequence[torch.Tensor],
    dims: tuple[int, ...],
    eps: float,
) -> None:
    """Records mean and 1 / deviation of ``x`` over ``dims``, and ``x`` normalised by them, times weight, plus bias."""
    inputs, arguments = [x, *present(weight, bias)], (having(weight, bias),)
    record_reduction(name, inputs, outputs, x.shape, dims, normal, arguments, maps=1, scalars=[number(eps, x.dtype)])


def normal(has: tuple[bool, ...], x: Expr, *rest: Expr) -> Fold:
    """Of the elements of x, and of the weight and the bias that it ``has``; scalar 0 is epsilon."""
    x = own(x)
    scale, shift = spread_out(rest, has)

    def epilogue(mean: Expr, m2: Expr, n: Expr) -> tuple[Expr, ...]:
        rstd = ops.rsqrt(m2 / n + ops.param(0, m2.dtype))
        return mean, rstd, affine((x - mean) * rstd, scale, shift)

    return Fold((x,), ("welford",), epilogue)


def centred_gradient(has_weight: bool, moments: int, grad: Expr, x: Expr, *rest: Expr) -> Fold:
    """The input gradient of ``y = (x - mean) * rstd * weight`` (2 moments) or of ``y = x * rstd * weight`` (1).

    The elements are those of the output's gradient, x, the moments and the weight; scalar 0 counts the points.
    """
    grad, x = own(grad), own(x)
    rstd = own(rest[moments - 1])
    normal = (x - own(rest[0])) * rstd if moments == 2 else x * rstd
    scaled = grad * own(rest[moments]) if has_weight else grad
    n = ops.param(0, x.dtype)

    def epilogue(*sums: Expr) -> tuple[Expr, ...]:
        centre = sums[1] / n if moments == 2 else None
        value = scaled - normal * (sums[0] / n)
        return ((value if centre is None else value - centre) * rstd,)

    return Fold((scaled * normal, scaled)[:moments], ("sum",) * moments, epilogue)


def parameter_gradients(
    name: str,
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: Maybe,
    rstd: torch.Tensor,
    dims: tuple[int, ...],
    shape: Sequence[int],
    like: Sequence[Maybe],
    wanted: Sequence[bool],
) -> tuple[Maybe, ...]:
    """The gradients of weight and bias, each of ``shape``: sums over ``dims`` of grad · normal, and of grad."""
    results = [
        input.new_empty(tuple(shape), dtype=input.dtype if t is None else t.dtype) if asked else None
        for t, asked in zip(like, wanted)
    ]
    outputs = present(*results)
    if outputs:
        inputs, arguments = [grad_out, input, *present(mean), rstd], (tuple(wanted), mean is not None)
        record_reduction(name, inputs, outputs, input.shape, dims, parameter_sums, arguments)
    return tuple(results)


def parameter_sums(wanted: tuple[bool, ...], centred: bool, grad: Expr, x: Expr, *moments: Expr) -> Fold:
    grad = own(grad)
    rstd = own(moments[-1])
    normal = (own(x) - own(moments[0])) * rstd if centred else own(x) * rstd
    values = tuple(v for v, asked in zip((grad * normal, grad), wanted) if asked)
    return Fold(values, ("sum",) * len(values), itself)


# Layer norm -----------------------------------------------------------------------------------------------------------


def trailing(t: torch.Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of ``t`` that are normalised over."""
    return tuple(range(t.dim() - len(normalized_shape), t.dim()))


def in_rows(t: torch.Tensor) -> torch.Tensor:
    """``t``; a copy of much that lies column by column, as convolutions leave it: a reduction of rows takes two passes
    over columns, and each is slower than a copy. What is expanded along rows takes no memory, and stays so.
    """
    return t.contiguous() if t.numel() >= ORDERED_NUMEL and t.stride(-1) > 1 and t.shape[-1] != 1 else t


def layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[torch.Tensor, ...]:
    out, mean, rstd = outputs_of(aten.native_layer_norm.default, input, normalized_shape, weight, bias, eps)
    dims = trailing(input, normalized_shape)
    record_normal("aten::native_layer_norm", in_rows(input), weight, bias, (mean, rstd, out), dims, eps)
    return out, mean, rstd


def layer_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    dims = trailing(input, normalized_shape)
    count = prod(normalized_shape)
    grad_out, input = in_rows(grad_out), in_rows(input)
    # Contiguous, whatever the layouts of the two.
    grad_input = input.new_empty(input.shape) if output_mask[0] else None
    if grad_input is not None:
        record_reduction(
            "aten::native_layer_norm_backward.input",
            [grad_out, input, mean, rstd, *present(weight)],
            [grad_input],
            input.shape,
            dims,
            centred_gradient,
            (weight is not None, 2),
            maps=1,
            scalars=[number(count, input.dtype)],
        )
    lead = tuple(range(dims[0] if dims else input.dim()))
    wanted = (output_mask[1], output_mask[2])
    like = [weight, bias if bias is not None else weight]
    sums = parameter_gradients(
        "aten::native_layer_norm_backward.weight", grad_out, input, mean, rstd, lead, normalized_shape, like, wanted
    )
    return grad_input, *sums


# RMS norm -------------------------------------------------------------------------------------------------------------


def rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: Maybe, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    out, rstd = outputs_of(aten._fused_rms_norm.default, input, normalized_shape, weight, eps)
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    record_reduction(
        "aten::_fused_rms_norm",
        [input, *present(weight)],
        [rstd, out],
        input.shape,
        trailing(input, normalized_shape),
        rms_normal,
        having(weight),
        maps=1,
        scalars=[number(prod(normalized_shape), input.dtype), number(eps, input.dtype)],
    )
    return out, rstd


def rms_normal(has_weight: bool, x: Expr, *weight: Expr) -> Fold:
    """Scalar 0 counts the points, scalar 1 is epsilon."""
    x = own(x)
    (scale,) = spread_out(weight, (has_weight,))

    def epilogue(squares: Expr) -> tuple[Expr, ...]:
        rstd = ops.rsqrt(squares / ops.param(0, x.dtype) + ops.param(1, x.dtype))
        return rstd, affine(x * rstd, scale, None)

    return Fold((x * x,), ("sum",), epilogue)


def rms_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    rstd: torch.Tensor,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    dims = trailing(input, normalized_shape)
    grad_input = torch.empty_like(grad_out, dtype=input.dtype) if output_mask[0] else None
    if grad_input is not None:
        record_reduction(
            "aten::_fused_rms_norm_backward.input",
            [grad_out, input, rstd, *present(weight)],
            [grad_input],
            input.shape,
            dims,
            centred_gradient,
            (weight is not None, 1),
            maps=1,
            scalars=[number(prod(normalized_shape), input.dtype)],
        )
    lead = tuple(range(dims[0] if dims else input.dim()))
    wanted = (output_mask[1] and weight is not None,)
    name = "aten::_fused_rms_norm_backward.weight"
    sums = parameter_gradients(name, grad_out, input, None, rstd, lead, normalized_shape, [weight], wanted)
    return grad_input, *sums


# Group norm -----------------------------------------------------------------------------------------------------------


def grouped(t: torch.Tensor, groups: int) -> torch.Tensor:
    """(N, C, …) as (N, groups, C / groups, …): a view for any strides."""
    return t.unflatten(1, (groups, -1)) if t.shape[1] else t.reshape(t.shape[0], groups, 0, *t.shape[2:])


def per_channel(t: Maybe, groups: int, rank: int) -> Maybe:
    """(C,) as (1, groups, C / groups, 1, …) of ``rank`` dimensions."""
    return None if t is None else t.view(1, groups, t.shape[0] // groups, *[1] * (rank - 3))


def group_norm(
    input: torch.Tensor, weight: Maybe, bias: Maybe, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[torch.Tensor, ...]:
    out, mean, rstd = outputs_of(aten.native_group_norm.default, input, weight, bias, N, C, HxW, group, eps)
    x = grouped(input, group)
    weight, bias = per_channel(weight, group, x.dim()), per_channel(bias, group, x.dim())
    dims = tuple(range(2, x.dim()))
    record_normal("aten::native_group_norm", x, weight, bias, (mean, rstd, grouped(out, group)), dims, eps)
    return out, mean, rstd


def group_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    grad, x = grouped(grad_out, group), grouped(input, group)
    ones = [1] * (x.dim() - 2)
    mean, rstd = mean.view(N, group, *ones), rstd.view(N, group, *ones)
    grad_input = torch.empty_like(input) if output_mask[0] else None
    if grad_input is not None:
        record_reduction(
            "aten::native_group_norm_backward.input",
            [grad, x, mean, rstd, *present(per_channel(weight, group, x.dim()))],
            [grouped(grad_input, group)],
            x.shape,
            tuple(range(2, x.dim())),
            centred_gradient,
            (weight is not None, 2),
            maps=1,
            scalars=[number(C // group * HxW, input.dtype)],
        )
    over = (0, *range(3, x.dim()))
    name = "aten::native_group_norm_backward.weight"
    channels = (group, C // group)
    sums = parameter_gradients(name, grad, x, mean, rstd, over, channels, [weight, weight], output_mask[1:])
    return grad_input, *(None if t is None else t.view(C) for t in sums)


def register() -> None:
    for overload, kernel in (
        (aten.native_layer_norm.default, layer_norm),
        (aten.native_layer_norm_backward.default, layer_norm_backward),
        (aten.native_group_norm.default, group_norm),
        (aten.native_group_norm_backward.default, group_norm_backward),
        (aten._fused_rms_norm.default, rms_norm),
        (aten._fused_rms_norm_backward.default, rms_norm_backward),
    ):
        register_operator(overload, kernel)
    for overload in (aten.layer_norm.default, aten.group_norm.default):
        record_composition(overload)
