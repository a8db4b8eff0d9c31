"""The fused inference kernels that ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call, as compositions.

``scaled_dot_product_attention`` itself is in :mod:`.sdpa`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import aten, impl


def hidden_keys(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Where a mask, of any dtype, is not zero, as what broadcasts to (B, heads, L, S): type 0 is (L, S), type 1 (key
    padding) is (B, S), type 2 has all four dimensions.
    """
    return (mask[:, None, None, :] if mask_type == 1 else mask).to(torch.bool)


def projected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> Sequence[torch.Tensor]:
    """Queries, keys and values, each (B, L, E): of one tensor they are columns of one product, and not copied."""
    if query is key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return [F.linear(*part) for part in parts]


def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: Maybe = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, Maybe]:
    """Output (B, L, E) and, if wanted, attention weights (B, L, S) or per head (B, heads, L, S)."""
    q, k, v = (
        t.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2)
        for t in projected(query, key, value, qkv_weight, qkv_bias)
    )
    hidden = None if mask is None else hidden_keys(mask, mask_type)
    if not need_weights:
        heads = F.scaled_dot_product_attention(q, k, v, None if hidden is None else ~hidden)
        out = F.linear(heads.transpose(1, 2).flatten(-2), proj_weight, proj_bias)
        # Where a mask hides all keys of a query the result is NaN, as on the CPU: the function above gives zeros.
        return out if hidden is None else out.masked_fill(blind_queries(hidden), float("nan")), None
    scores = q @ k.transpose(-2, -1) * (embed_dim // num_head) ** -0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    out = F.linear((weights @ v).transpose(1, 2).flatten(-2), proj_weight, proj_bias)
    return out, weights.mean(1) if average_attn_weights else weights


def blind_queries(hidden: torch.Tensor) -> torch.Tensor:
    """The queries that see no key in one of the heads, as what broadcasts to (B, L, 1)."""
    blind = hidden.all(-1)
    return (blind.any(1) if blind.dim() == 3 else blind).unsqueeze(-1)


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: Maybe = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """One encoder layer without dropout, (B, L, E) → (B, L, E)."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        out, _ = native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type
        )
        return out

    norms = (norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2)
    products = (ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2)
    return encoder_layer(src, attend, embed_dim, use_gelu, norm_first, eps, *norms, *products)


def encoder_layer(
    src: torch.Tensor,
    attend: Callable[[torch.Tensor], torch.Tensor],
    embed_dim: int,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
) -> torch.Tensor:
    """One encoder layer with ``attend`` as its attention, (…, E) → (…, E)."""

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


def register() -> None:
    impl(aten._native_multi_head_attention.default, native_multi_head_attention)
    impl(aten._transformer_encoder_layer_fwd.default, transformer_encoder_layer)
