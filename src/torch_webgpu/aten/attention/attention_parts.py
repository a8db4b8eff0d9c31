"""Gradients of attention to a part of the keys, where others hold the rest: of a ring, as in context parallelism.

A query's weights for these keys do not add up to 1. How large each is follows from the logarithm of the whole sum; what
all weights times their gradients add up to follows from the whole result.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import empty_like_meta
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.attention.attention import PYTORCH

from . import attention_tiles
from .attention_products import SCALE, batch_of, plain, product, rows_of, visible
from .sdpa import Road, fused_road, scale_of

WANTED = (True, True, True, False)


def backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[Maybe, ...]:
    """What these keys and values add to the gradient of query (B, H, L, E), and the gradients of key and value.

    ``out`` (B, H, L, D) and ``logsumexp`` (B, H, L) are those of attention to all keys.
    """
    factor = scale_of(query, scale)
    if fused_road(query, key, value, None, 0.0, is_causal, is_backward=True) is Road.TILES:
        given: Any = (grad_out, query, key, value, None, out, logsumexp, is_causal, factor, WANTED)
        return attention_tiles.backward(*given)[:3]
    (b, h, n, _), s = query.shape, key.shape[2]
    q, g, k, v = rows_of(query, key), rows_of(grad_out, key), batch_of(key), batch_of(value)
    scores = product(q, k.mT, torch.float32).view(b, h, n, s)
    grad_weights = product(g, v.mT, torch.float32).view(b, h, n, s)
    inputs = [scores, grad_weights, logsumexp.unsqueeze(3), attention_tiles.mean_of(grad_out, out)]
    layouts = [plain((b, h, n, s), query.dtype)] * 2
    outputs = empty_like_meta(layouts, query.get_device())
    record_pointwise("attention.slopes_of_part", inputs, outputs, slopes, (is_causal,), [("f", factor)])
    weights, grad_scores = (t.view(k.shape[0], -1, s) for t in outputs)
    return (
        product(grad_scores, k, query.dtype).view(query.shape),
        product(grad_scores.mT, q, query.dtype).view(key.shape),
        product(weights.mT, g, query.dtype).view(value.shape),
    )


def slopes(is_causal: bool, score: Expr, grad_weight: Expr, lse: Expr, mean: Expr) -> tuple[Expr, Expr]:
    """A weight, and the gradient of the product of query and key."""
    weight = ops.exp(visible(is_causal, PYTORCH, score, ()) - lse)
    return weight, ops.param(SCALE, "f32") * weight * (grad_weight - mean)
