"""Attention of many queries, forward and backward, as products of the inputs' own dtype.

As in "FlashAttention" (Dao et al., 2022) nothing of the size of the scores outlives a call: the backward computes them
again, and the weights from each query's ``log(sum(exp(scores)))``. Scores, their softmax and sums are float32 (products
are kept as a program keeps them that writes attention out), and the weights are rounded to the dtype of the values for
the product with these; PyTorch's composition brings half types to float32 for all of it.

Dropout makes its numbers again in the backward, from a key that two tensors hold.

Queries of heads that share keys and values are rows of one matrix, so that neither is copied for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_webgpu import dtypes
from torch_webgpu.aten.dispatch.operations import Fold, kernel_outputs, record_pointwise, record_reduction
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import Meta, empty_like_meta
from torch_webgpu.aten.random.distributions import random_at
from torch_webgpu.aten.reductions.reduce import own
from torch_webgpu.aten.reductions.softmax import checked, share_of
from torch_webgpu.engine.record import TypedScalar, engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.attention import attention
from torch_webgpu.kernels.attention.attention import PYTORCH, Rules
from torch_webgpu.kernels.matmul.matmul import extern
from torch_webgpu.layout import contiguous_strides

NOTHING = float("-inf")
SCALE, KEYS, KEPT, FACTOR = range(4)
"""Parameters of kernels over the scores; all but the first are there with dropout."""


class Dropout(NamedTuple):
    """Weights that are dropped with probability ``p``, the others divided by ``1 - p``: one of (B, H, L, S) is kept
    where the random number at its row (of B * H * L) and column is less than ``1 - p``. ``seed`` and ``offset``, as
    PyTorch's operator calls them, are the key of these numbers (:func:`..random.distributions.draw_key`).
    """

    p: float
    seed: torch.Tensor
    offset: torch.Tensor

    def scalars(self, key: torch.Tensor) -> list[TypedScalar]:
        """The parameters from ``KEYS`` on."""
        return [("u", key.shape[2]), ("f", 1 - self.p), ("f", 1 / (1 - self.p))]


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    is_causal: bool,
    scale: float,
    rules: Rules = PYTORCH,
    dropout: Dropout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result (B, H, L, D) and what :func:`torch_webgpu.kernels.attention.attention_few.extern` says of each
    query.
    """
    (b, h, n, _), s = query.shape, key.shape[2]
    k, v = batch_of(key), batch_of(value)
    scores = product(rows_of(query, key), k.mT, dtypes.BY_NAME[rules.stored].torch).view(b, h, n, s)
    lse, weights = empty_like_meta(
        [plain((b, h, n, 1), torch.float32), plain((b, h, n, s), query.dtype)], query.get_device()
    )
    inputs = [scores, *present(mask), *(dropout or ())[1:]]
    record_reduction(
        "attention.weights",
        inputs,
        [lse, weights],
        scores.shape,
        (3,),
        shares,
        (is_causal, rules, dropout is not None),
        maps=1,
        scalars=scalars(scale, key, dropout),
    )
    out = product(weights.view(k.shape[0], -1, s), v, query.dtype)
    return out.view(b, h, n, -1), lse.squeeze(3)


def shares(is_causal: bool, rules: Rules, drops: bool, score: Expr, *rest: Expr) -> Fold:
    """The logarithm of each query's sum, and the weights."""
    masks, words = parted(rest, drops)
    score = visible(is_causal, rules, score, masks)

    def epilogue(top: Expr, total: Expr) -> tuple[Expr, ...]:
        nothing = ops.eq(top, NOTHING) & ~ops.isnan(total)
        total = checked(top, total)
        share = share_of(score, top, total)
        if rules.zeros:
            share = ops.where(nothing, ops.like(score, 0), share)
        share = dropped(share, words)
        return ops.where(nothing, ops.like(top, attention.HIGHEST), top + ops.log(total)), share

    return Fold((score,), ("logsumexp",), epilogue)


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
    """The gradients of query, key, value and of a mask that is added, those that are ``wanted``."""
    (b, h, n, _), s, dtype = query.shape, key.shape[2], query.dtype
    q, g, k, v = rows_of(query, key), rows_of(grad, key), batch_of(key), batch_of(value)
    shape = (b, h, n, s)
    scores = product(q, k.mT, torch.float32).view(shape)
    grad_weights = product(g, v.mT, torch.float32).view(shape)
    drawn, target = (dropout or ())[1:], engine().device(query.get_device()).target
    apart = mask is not None and dropout is not None and 8 + wanted[3] > target.max_buffers
    if apart:
        scores = counted(scores, mask, is_causal, scale)
    factors = dtype if target.matrices else torch.float32  # halves are rounded for the sake of tensor cores
    q, g, k = (t.to(factors) for t in (q, g, k))
    full = [plain(shape, factors), plain(shape, factors)]
    if wanted[3]:
        full.append(plain(shape, torch.float32))
    weights, grad_scores, *of_mask = outputs = empty_like_meta(full, query.get_device())
    record_reduction(
        "attention.slopes",
        [scores, grad_weights, lse.unsqueeze(3), *([] if apart else present(mask)), *drawn],
        outputs,
        shape,
        (3,),
        slopes,
        (is_causal, apart, len(outputs), dropout is not None),
        maps=len(outputs),
        scalars=scalars(scale, key, dropout),
    )
    weights, grad_scores = (t.view(k.shape[0], -1, s) for t in (weights, grad_scores))
    return (
        product(grad_scores, k, dtype).view(query.shape) if wanted[0] else None,
        product(grad_scores.mT, q, dtype).view(key.shape) if wanted[1] else None,
        product(weights.mT, g, dtype).view(value.shape) if wanted[2] else None,
        of_mask[0].sum_to_size(mask.shape).to(mask.dtype) if of_mask and mask is not None else None,
    )


def slopes(
    is_causal: bool,
    are_visible: bool,
    outputs: int,
    drops: bool,
    score: Expr,
    grad_weight: Expr,
    lse: Expr,
    *rest: Expr,
) -> Fold:
    """The weights, the gradients of the products, and those of a mask: the first so many. ``are_visible``: scores are
    what :func:`visible` makes of products.
    """
    masks, words = parted(rest, drops)
    score = own(score) if are_visible else visible(is_causal, PYTORCH, score, masks)
    weight, grad_weight = ops.exp(score - lse), dropped(grad_weight, words)

    def epilogue(total: Expr, weighted: Expr) -> tuple[Expr, ...]:
        # The logarithm of a sum rounds, by more the larger scores are: weights made of it add up to 1 only nearly.
        total = ops.where(ops.eq(total, 0), ops.like(total, 1), total)  # of a row of which nothing counts
        share = weight / total
        slope = share * (grad_weight - weighted / total)
        return (dropped(share, words), ops.param(SCALE, "f32") * slope, slope)[:outputs]

    return Fold((weight, weight * grad_weight), ("sum", "sum"), epilogue)


def counted(scores: torch.Tensor, mask: Maybe, is_causal: bool, scale: float) -> torch.Tensor:
    """The scores that count, by a kernel of their own, of products of query and key."""
    (out,) = empty_like_meta([plain(scores.shape, torch.float32)], scores.get_device())
    inputs = [scores, *[t.expand(scores.shape) for t in present(mask)]]
    record_pointwise("attention.scores", inputs, [out], score_of, (is_causal,), [("f", scale)])
    return out


def score_of(is_causal: bool, product: Expr, *masks: Expr) -> Expr:
    return visible(is_causal, PYTORCH, product, masks)


def scalars(scale: float, key: torch.Tensor, dropout: Dropout | None) -> list[TypedScalar]:
    return [("f", scale), *(dropout.scalars(key) if dropout else ())]


def parted(rest: Sequence[Expr], drops: bool) -> tuple[Sequence[Expr], Sequence[Expr]]:
    """The elements of the mask, if there is one, and the words of dropout's key."""
    return (rest[:-2], rest[-2:]) if drops else (rest, ())


def kept(dropout: Dropout, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Which weights (B, H, L, S) dropout keeps, as booleans."""
    shape = (*query.shape[:3], key.shape[2])
    words = [t.expand(shape) for t in (dropout.seed, dropout.offset)]
    (out,) = empty_like_meta([plain(shape, torch.bool)], query.get_device())
    record_pointwise("attention.kept", words, [out], stays, (), scalars(0.0, key, dropout))
    return out


def stays(*words: Expr) -> Expr:
    row = ops.floordiv(ops.linear(), ops.param(KEYS, "u32"))
    return random_at(words, row, ops.to_dtype(ops.index(3), "u32")) < ops.param(KEPT, "f32")


def dropped(x: Expr, words: Sequence[Expr]) -> Expr:
    """``x``, a weight or the gradient of one, after dropout."""
    return ops.where(stays(*words), x * ops.param(FACTOR, "f32"), ops.like(x, 0)) if words else x


def visible(is_causal: bool, rules: Rules, product: Expr, masks: Sequence[Expr]) -> Expr:
    """The score that counts, from a product of query and key, and the mask there."""
    score = ops.param(SCALE, "f32") * own(product)
    for m in masks:
        if m.dtype == "bool":
            score = ops.where(~m if rules.hides else m, score, ops.like(score, rules.fill))
        else:
            score = own(ops.to_dtype(score + own(m), rules.rounded))
    if is_causal:
        score = ops.where(ops.le(ops.index(3), ops.index(2)), score, ops.like(score, NOTHING))
    return score


def present(mask: Maybe) -> list[torch.Tensor]:
    return [] if mask is None else [mask]


def plain(shape: Sequence[int], dtype: torch.dtype) -> Meta:
    """A contiguous layout."""
    return tuple(shape), contiguous_strides(tuple(shape)), dtype


def batch_of(t: torch.Tensor) -> torch.Tensor:
    """Heads as batches: (B * G, S, E)."""
    return t.flatten(0, 1)


def rows_of(t: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(B, H, L, E) as (B * G, H / G * L, E), for the heads of ``key``."""
    return t.reshape(key.shape[0] * key.shape[1], -1, t.shape[3])


def product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``a @ b`` of (N, M, K) and (N, K, P), summed in float32, as ``dtype``."""
    shape = (a.shape[0], a.shape[1], b.shape[2])
    of, result = dtypes.of(a.dtype).name, dtypes.of(dtype).name
    (out,) = kernel_outputs("aten::bmm", (a, b), [plain(shape, dtype)], extern(of, result_dtype=result))
    return out
