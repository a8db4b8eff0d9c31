"""``torch.nn.functional.scaled_dot_product_attention``: which of its roads a call takes, and PyTorch's operator of the
one that is a kernel of ours.

The C++ function asks a table of function pointers which road a device has for a call
(https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/attention.cpp), in which Python cannot
write. So it is registered for webgpu above autograd: what :func:`road` sends to the kernel becomes PyTorch's operator
for such kernels, with its derivative; anything else is PyTorch's composition of products and a softmax, as before.
"""

from __future__ import annotations

from enum import Enum, auto
from math import sqrt
from typing import Any

import torch

from torch_webgpu.kernels import attention
from torch_webgpu.kernels.attention import Attention

from .computed import computed
from .torch_abi import aten, composite, empty_like_meta, fused_attention_is_wanted, impl, in_forward_mode, infer
from .traced import traced

Optional = torch.Tensor | None

FEW_QUERIES = 16
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Road(Enum):
    """How attention is computed: by one kernel that keeps no scores, or by PyTorch's composition."""

    KERNEL = auto()
    MATH = auto()


def road(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, dropout_p: float, is_causal: bool
) -> Road:
    """The road of a call.

    The kernel is for few queries, as in decoding, where the composition has many small operations and copies the keys
    and values that heads share. Many queries are products that tiles in registers compute fastest. It has neither
    forward derivatives nor second ones, and keeps nothing for a backward that would not compute the scores again, so
    what is differentiated is composed. Its random numbers would not be those of the composition.
    """
    if not fused_attention_is_wanted() or dropout_p or not is_composed_of_heads(query, key, value, mask):
        return Road.MATH
    if is_causal and mask is not None:
        return Road.MATH  # PyTorch's error
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (query, key, value, mask)):
        return Road.MATH
    if in_forward_mode():
        return Road.MATH
    if query.shape[2] > FEW_QUERIES:
        return Road.MATH
    return Road.KERNEL


def is_composed_of_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional) -> bool:
    """Whether the kernel knows these dtypes and layouts (see :mod:`torch_webgpu.kernels.attention`)."""
    dtype, device = query.dtype, query.device
    if dtype not in FLOATS or any(t.dtype != dtype or t.device != device or t.dim() != 4 for t in (key, value)):
        return False
    if query.dim() != 4 or query.is_nested or key.is_nested or value.is_nested:
        return False
    if query.stride(3) != 1:
        return False  # the result would lie as the query does, and PyTorch's other roads make it contiguous
    (b, h, n, e), (kb, g, s, ke), (vb, vg, vs, d) = query.shape, key.shape, value.shape
    if (kb, vb, vg, vs, ke) != (b, b, g, s, e) or g == 0 or h % g or not attention.fits(b, h, n, e, d):
        return False
    if mask is None:
        return True
    if mask.device != device or mask.dtype not in (torch.bool, dtype) or mask.dim() > 4:
        return False
    return all(have in (1, want) for have, want in zip(reversed(mask.shape), (s, n, h, b)))


composition = composite(aten.scaled_dot_product_attention.default)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """(B, H, L, D) of query (B, H, L, E), key (B, H, S, E) and value (B, H, S, D); key and value have fewer heads with
    ``enable_gqa``.
    """
    grouped = query.dim() == 4 and key.dim() == 4 and query.shape[1] != key.shape[1]
    if (grouped and not enable_gqa) or road(query, key, value, attn_mask, dropout_p, is_causal) is Road.MATH:
        return composition(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    fused = aten._scaled_dot_product_fused_attention_overrideable.default
    return fused(query, key, value, attn_mask, 0.0, is_causal, scale=scale)[0]


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, ...]:
    """The result, the logarithm of each query's sum (B, H, L), and what stands for the random state."""
    overload = aten._scaled_dot_product_fused_attention_overrideable.default
    y, lse, *state = infer(overload, query, key, value, mask, 0.0, is_causal)
    if scale is None:
        scale = 1 / sqrt(query.shape[-1])
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    body = attention.extern(Attention(scale, is_causal, mask is not None))
    found = computed(overload._schema.name, inputs, (y, lse), body)
    return *found, *empty_like_meta(state, query.get_device())


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """PyTorch's operator; ``attn_bias`` may be of booleans, and key and value may have fewer heads than query."""
    if dropout_p or not is_composed_of_heads(query, key, value, attn_bias):
        raise NotImplementedError("this attention has no kernel on webgpu; use scaled_dot_product_attention")
    y, lse, seed, offset = traced_forward(query, key, value, attn_bias, is_causal, scale)
    return y, lse, None, None, query.shape[2], key.shape[2], seed, offset, None


traced_forward = traced(forward)


def register() -> None:
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        impl(aten.scaled_dot_product_attention.default, scaled_dot_product_attention, key)
    impl(aten._scaled_dot_product_fused_attention_overrideable.default, fused_attention)
