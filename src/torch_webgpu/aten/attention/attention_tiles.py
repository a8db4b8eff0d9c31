"""Attention of many queries over tiles of scores (:mod:`torch_webgpu.kernels.attention.flash`), forward and
backward: what :mod:`.attention_products` computes, in memory that does not grow with the number of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from torch_webgpu.aten.dispatch.operations import Fold, kernel_outputs, record_reduction
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import Meta, empty_like_meta
from torch_webgpu.aten.reductions.reduce import itself, own
from torch_webgpu.engine.layouts import spec_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.kernels.attention import flash, flash_matrix
from torch_webgpu.kernels.attention.attention import PYTORCH, Attention, Rules

from .attention_products import Dropout, plain, present

BLOCK = 64
"""Queries of a block."""
BUSY_BLOCKS = 100
"""Blocks that occupy a large GPU: with fewer, products divide their sums among workgroups, and blocks do not."""


def fits(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe, dropout_p: float, is_backward: bool
) -> bool:
    """Whether the adapter computes this: sizes, and how many buffers a kernel binds. The gradient of a mask is as large
    as the scores, and is nobody's here.
    """
    target = engine().device(query.get_device()).target
    value_width = value.shape[3]
    if not flash.fits(query.shape, key.shape[2], value_width, target):
        return False
    result = prod((*query.shape[:3], value_width)) * query.itemsize
    sizes = [t.untyped_storage().nbytes() for t in (query, key, value, *present(mask))]
    sizes += [result, *sizes[1:3]] if is_backward else [result]
    scales = bool(target.matrices) and query.dtype == torch.bfloat16
    small = (2 if is_backward else 1) + 2 * (dropout_p > 0) + scales
    return small + sum(-(-size // target.window_bytes) for size in sizes) <= target.max_buffers


def are_faster(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe, is_causal: bool) -> bool:
    """Whether tiles are faster than products, as measured on an H200: with enough blocks of queries and without a mask,
    on tensor cores; and of causal attention, of which they leave out half.
    """
    target = engine().device(query.get_device()).target
    b, h, n, _ = query.shape
    if target.software or mask is not None or b * h * -(-n // BLOCK) < BUSY_BLOCKS:
        return False
    return is_causal or flash_matrix.multiplies(map(spec_of, (query, key, value)), target)


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    is_causal: bool,
    scale: float,
    layout: Meta,
    rules: Rules = PYTORCH,
    dropout: Dropout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result (B, H, L, D), with this layout, and of each query what
    :func:`torch_webgpu.kernels.attention.attention_few.extern` says.
    """
    b, h, n, _ = query.shape
    body = flash.forward(Attention(scale, is_causal, mask is not None, rules), dropout.p if dropout else 0.0)
    inputs = given(query, key, value, mask, dropout)
    y, lse = kernel_outputs("attention.tiles", inputs, [layout, ((b, h, n), (h * n, n, 1), torch.float32)], body)
    return y, lse


def backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    out: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool,
    scale: float,
    wanted: Sequence[bool],
    dropout: Dropout | None = None,
) -> tuple[Maybe, ...]:
    """The gradients of query, key and value, those that are ``wanted``, laid out as these."""
    p, attention = dropout.p if dropout else 0.0, Attention(scale, is_causal, mask is not None)
    inputs = [*given(query, key, value, mask, dropout), grad, lse, mean_of(grad, out)]
    gradients: list[Maybe] = [None, None, None, None]
    if wanted[0]:
        kernel = flash.query_gradient(attention, p)
        gradients[:1] = kernel_outputs("attention.query_tiles", inputs, [like(query)], kernel)
    if wanted[1] or wanted[2]:
        layouts = [like(key), like(value)]
        gradients[1:3] = kernel_outputs("attention.key_tiles", inputs, layouts, flash.key_gradients(attention, p))
    return tuple([t if want else None for t, want in zip(gradients, wanted)])


def mean_of(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """What a query's weights, each times its gradient, add up to: the product of result and gradient, (B, H, L, 1)."""
    (mean,) = empty_like_meta([plain((*out.shape[:3], 1), torch.float32)], out.get_device())
    record_reduction("attention.mean", [grad, out], [mean], out.shape, (3,), products)
    return mean


def products(grad: Expr, y: Expr) -> Fold:
    return Fold((own(grad) * own(y),), ("sum",), itself)


def given(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe, dropout: Dropout | None
) -> list[torch.Tensor]:
    return [query, key, value, *present(mask), *(dropout or ())[1:]]


def like(t: torch.Tensor) -> Meta:
    """The layout of ``torch.empty_like(t)``."""
    made = torch.empty_like(t, device="meta")
    return tuple(made.shape), made.stride(), made.dtype
