"""``torch.nn.functional.scaled_dot_product_attention``: which of its roads a call takes, and PyTorch's operator for the
fused ones.

The C++ function asks a table of function pointers which road a device has for a call
(https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/attention.cpp), in which Python cannot
write. So it is registered for webgpu above autograd: what :func:`is_fused` allows becomes PyTorch's operator for such
kernels, with its derivative; anything else is PyTorch's composition of products and a softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from math import sqrt
from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import kernel_outputs
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import (
    AUTOGRAD_KEY,
    BACKEND_KEY,
    aten,
    below_autograd,
    composes_attention_in_halves,
    fused_attention_is_wanted,
    has_kernel,
    impl,
    in_transform,
    infer,
    is_modified,
)
from torch_webgpu.aten.dispatch.torch_compositions import composite
from torch_webgpu.aten.random.distributions import draw_key, key_scalars
from torch_webgpu.kernels.attention import attention_few
from torch_webgpu.kernels.attention.attention import Attention, Rules

from . import attention_products, attention_tiles
from .attention_products import Dropout

FEW_QUERIES = 16
KEPT_SCORES_BYTES = 512 << 20
"""More scores than this, in float32, are not kept: several such matrices live at once, and with a few thousand tokens
they would be most of the memory that is used.
"""
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FUSED = aten._scaled_dot_product_fused_attention_overrideable.default
FUSED_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default


class Road(Enum):
    """How PyTorch's fused operator is computed.

    ONE_KERNEL and TILES (:mod:`.attention_tiles`) keep no scores; PRODUCTS keeps them for the length of a call
    (:mod:`.attention_products`).
    """

    ONE_KERNEL = auto()
    TILES = auto()
    PRODUCTS = auto()


def fused_road(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    is_backward: bool = False,
) -> Road:
    """The road of what is fused: one kernel for few queries, as in decoding, where products are small and launches
    many, if nothing is dropped; tiles of scores where they are faster, or scores too many to be kept; products else.
    """
    (b, h, queries, width), keys = query.shape, key.shape[2]
    if is_backward or queries > FEW_QUERIES or dropout_p:
        wanted = b * h * queries * keys * 4 > KEPT_SCORES_BYTES or attention_tiles.are_faster(
            query, key, value, mask, is_causal
        )
        tiles = wanted and attention_tiles.fits(query, key, value, mask, dropout_p, is_backward)
        return Road.TILES if tiles else Road.PRODUCTS
    return Road.ONE_KERNEL if attention_few.fits(b, h, queries, width, value.shape[3]) else Road.PRODUCTS


def is_fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe, dropout_p: float, is_causal: bool
) -> bool:
    """Whether a call becomes the fused operator. It says so of fake tensors, too, which have no memory: what depends on
    an adapter is asked when the operator runs (:func:`fused_road`).

    The composition keeps the weights for the backward, and what dropout made of them, and brings half types to float32,
    which tensor cores do not take; fused roads compute them again. PyTorch knows no derivatives of these in forward
    mode, and cannot run them over batches of calls.
    """
    if not fused_attention_is_wanted() or not 0 <= dropout_p < 1 or not are_heads(query, key, value, mask):
        return False
    return not in_transform() and not (is_causal and mask is not None)  # the latter is an error, in PyTorch's words


def needs_grad(*tensors: Maybe) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def are_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe) -> bool:
    """Whether fused roads know these dtypes and layouts (see :mod:`torch_webgpu.kernels.attention.attention`)."""
    dtype, device = query.dtype, query.device
    if dtype not in FLOATS or not key.dtype == value.dtype == dtype or not key.device == value.device == device:
        return False
    if not query.dim() == key.dim() == value.dim() == 4 or query.is_nested or key.is_nested or value.is_nested:
        return False
    if query.stride(3) != 1:
        return False  # the result would lie as the query does, and PyTorch's other roads make it contiguous
    (b, h, n, e), (kb, g, s, ke), (vb, vg, vs, _) = query.shape, key.shape, value.shape
    if (kb, vb, vg, vs, ke) != (b, b, g, s, e) or not g or h % g or not e:
        return False
    if mask is None:
        return True
    if mask.device != device or mask.dtype not in (torch.bool, dtype) or mask.dim() > 4:
        return False
    return all(have in (1, want) for have, want in zip(reversed(mask.shape), (s, n, h, b)))


composition = composite(aten.scaled_dot_product_attention.default)
composed_products = composite(aten._scaled_dot_product_attention_math.default)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """(B, H, L, D) of query (B, H, L, E), key (B, H, S, E) and value (B, H, S, D); key and value have fewer heads with
    ``enable_gqa``.
    """
    # Which roads are allowed, and in which type the composition computes, is in no recipe's key.
    is_usual = fused_attention_is_wanted() and not composes_attention_in_halves()
    if is_usual and not dropout_p and is_unobserved(query, key, value, attn_mask):
        return attend_once(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def is_unobserved(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe) -> bool:
    """Whether nobody is told which operators a call is made of: no gradients, no modes, no classes, no flags of
    tensors.
    """
    if not query.__class__ is key.__class__ is value.__class__ is torch.Tensor or needs_grad(query, key, value, mask):
        return False
    if query.is_nested or key.is_nested or value.is_nested or query.is_neg() or key.is_neg() or value.is_neg():
        return False
    return (mask is None or (mask.__class__ is torch.Tensor and not mask.is_neg())) and not (
        is_modified() or in_transform()
    )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Maybe,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """By the road of the call."""
    grouped = query.dim() == 4 and key.dim() == 4 and query.shape[1] != key.shape[1]
    if (grouped and not enable_gqa) or not is_fused(query, key, value, attn_mask, dropout_p, is_causal):
        return composition(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return FUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    is_causal: bool,
    scale: float | None,
    dropout_p: float,
    seed: torch.Tensor,
    offset: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The result, and the logarithm of each query's sum (B, H, L)."""
    y, lse, *_ = infer(FUSED, query, key, value, mask, 0.0, is_causal)
    scale = scale_of(query, scale)
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    chosen = fused_road(query, key, value, mask, dropout_p, is_causal)
    if chosen is Road.ONE_KERNEL or not all(t.numel() for t in inputs):
        body = attention_few.extern(Attention(scale, is_causal, mask is not None))
        return tuple(kernel_outputs(FUSED._schema.name, inputs, (y, lse), body))
    dropout = dropout_of(dropout_p, seed, offset)
    if chosen is Road.TILES:
        return attention_tiles.forward(query, key, value, mask, is_causal, scale, y, dropout=dropout)
    out, sums = attention_products.forward(query, key, value, mask, is_causal, scale, dropout=dropout)
    return laid_out(out, y[1]), sums


def scale_of(query: torch.Tensor, scale: float | None) -> float:
    return 1 / sqrt(query.shape[-1]) if scale is None else scale


def dropout_of(p: float, seed: Maybe, offset: Maybe) -> Dropout | None:
    return Dropout(p, seed, offset) if p and seed is not None and offset is not None else None


def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    scale: float,
    rules: Rules,
    is_merged: bool,
) -> torch.Tensor:
    """Attention as a program that composes it means it, (B, H, L, D); any strides, and a mask of any floating dtype.

    Contiguous; if ``is_merged``, as (B, L, H, D).
    """
    (b, h, n, _), d = query.shape, value.shape[3]
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    strides = (n * h * d, d, h * d, 1) if is_merged else (h * n * d, n * d, d, 1)
    chosen, is_empty = fused_road(query, key, value, mask), not all(t.numel() for t in inputs)
    if chosen is Road.TILES and not is_empty:
        layout = (b, h, n, d), strides, query.dtype
        return attention_tiles.forward(query, key, value, mask, False, scale, layout, rules)[0]
    if chosen is Road.PRODUCTS and not is_empty:
        y, _ = attention_products.forward(query, key, value, mask, False, scale, rules)
        return laid_out(y, strides)
    outputs = ((b, h, n, d), strides, query.dtype), ((b, h, n), (h * n, n, 1), torch.float32)
    return kernel_outputs(
        FUSED._schema.name, inputs, outputs, attention_few.extern(Attention(scale, False, mask is not None, rules))
    )[0]


def laid_out(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``t`` with these strides, without gaps between its elements."""
    return t if t.stride() == strides else t.new_empty_strided(t.shape, strides).copy_(t)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """PyTorch's operator; ``attn_bias`` may be of booleans, and key and value may have fewer heads than query."""
    check(query, key, value, attn_bias, dropout_p)
    seed, offset = key_once(query) if dropout_p else no_key(query)
    y, lse = forward_once(query, key, value, attn_bias, is_causal, scale, dropout_p, seed, offset)
    return y, lse, None, None, query.shape[2], key.shape[2], seed, offset, None


def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Maybe, dropout_p: float) -> None:
    if not 0 <= dropout_p < 1 or not are_heads(query, key, value, mask):
        raise NotImplementedError(
            f"attention of these layouts, or with dropout_p={dropout_p}, has no fused road on webgpu; call "
            "torch.nn.functional.scaled_dot_product_attention, which composes it"
        )


def backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe,
    out: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool,
    scale: float | None,
    wanted: Sequence[bool],
    dropout_p: float,
    seed: Maybe,
    offset: Maybe,
) -> tuple[Maybe, ...]:
    """The gradients of query, key, value and mask, laid out as PyTorch's meta kernel says."""
    tensors = (query, key, value, mask)
    layouts = [
        torch.empty_like(t, device="meta") if t is not None and want else None for t, want in zip(tensors, wanted)
    ]
    if not all(t.numel() for t in (grad, query, key, value)):
        return tuple(
            [None if t is None or layout is None else torch.zeros_like(t) for t, layout in zip(tensors, layouts)]
        )
    given = (grad, query, key, value, mask, out, lse, is_causal, scale_of(query, scale), wanted)
    chosen = fused_road(query, key, value, mask, dropout_p, is_causal, is_backward=True)
    is_tiled = chosen is Road.TILES and not wanted[3]
    computed_by = attention_tiles if is_tiled else attention_products
    found = computed_by.backward(*given, dropout_of(dropout_p, seed, offset))
    return tuple(
        [None if t is None or layout is None else laid_out(t, layout.stride()) for t, layout in zip(found, layouts)]
    )


def fused_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Maybe,
    grad_input_mask: Sequence[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Maybe,
    philox_offset: Maybe,
    *,
    scale: float | None = None,
) -> tuple[Maybe, ...]:
    """PyTorch's operator for the gradients of :func:`fused_attention`."""
    check(query, key, value, attn_bias, dropout_p)
    wanted = list(grad_input_mask)
    given = (grad_out, query, key, value, attn_bias, out, logsumexp, is_causal, scale, wanted)
    return backward_once(*given, dropout_p, *((philox_seed, philox_offset) if dropout_p else (None, None)))


def layouts_of_gradients(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Maybe,
    *rest: Any,
    **options: Any,
) -> tuple[Maybe, ...]:
    """PyTorch's meta kernel of the gradients, which its release 2.11 has not: fake tensors would run ours, on zeros."""
    return tuple([None if t is None else torch.empty_like(t) for t in (query, key, value, attn_bias)])


def differentiable_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Maybe,
    grad_input_mask: Sequence[bool],
    *rest: Any,
    scale: float | None = None,
) -> tuple[Maybe, ...]:
    """The same above autograd: where gradients are to have gradients they are those of the composition, which has them;
    PyTorch knows no derivative of the operator.
    """
    if not needs_grad(grad_out, query, key, value, attn_bias):
        with below_autograd():
            return FUSED_BACKWARD(grad_out, query, key, value, attn_bias, grad_input_mask, *rest, scale=scale)
    dropout_p, is_causal, seed, offset = rest[6:]
    # One input may be another, or a function of it: by aliases each has the gradient that is its own.
    query, key, value = query.view_as(query), key.view_as(key), value.view_as(value)
    attn_bias = None if attn_bias is None else attn_bias.view_as(attn_bias)
    shared = query.shape[1] // key.shape[1]
    out, weights = composed_products(query, key, value, attn_bias, 0.0, is_causal, scale=scale, enable_gqa=shared > 1)
    if (dropout := dropout_of(dropout_p, seed, offset)) is not None:
        kept = attention_products.kept(dropout, query, key) / (1 - dropout_p)
        out = (weights * kept).to(value.dtype) @ value.repeat_interleave(shared, 1)
    given = [t if want else None for t, want in zip((query, key, value, attn_bias), grad_input_mask)]
    found = iter(torch.autograd.grad(out, [t for t in given if t is not None], grad_out, create_graph=True))
    return tuple([None if t is None else next(found) for t in given])


def no_key(like: torch.Tensor) -> list[torch.Tensor]:
    """What the operator returns where nothing is random, as the layouts of its results say."""
    return [torch.empty((), dtype=torch.int64, device=like.device) for _ in range(2)]


def key_numbers(args: Sequence[Any]) -> tuple[int | float, ...]:
    return tuple([word for _, word in key_scalars(args[0])])


attend_once = record_once(attend)
key_once = record_once(draw_key, key_numbers)
forward_once = record_once(forward)
backward_once = record_once(backward)


def register() -> None:
    for key in (AUTOGRAD_KEY, BACKEND_KEY):
        impl(aten.scaled_dot_product_attention.default, scaled_dot_product_attention, key)
    impl(FUSED, fused_attention)
    impl(FUSED_BACKWARD, fused_attention_backward)
    impl(FUSED_BACKWARD, differentiable_backward, AUTOGRAD_KEY)
    if not has_kernel(FUSED_BACKWARD, "Meta"):
        impl(FUSED_BACKWARD, layouts_of_gradients, "Meta")
