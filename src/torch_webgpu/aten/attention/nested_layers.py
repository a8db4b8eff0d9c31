"""Inference of attention and encoder layers over nested tensors: all rows one after the other, but in attention.

There sequences are padded to one length, and what pads them is hidden. Where rows go is found once for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import aten, shared_kernel

from .nested_rows import CPU_NESTED_KEY, buffer_of, nested_over, sizes_of
from .transformer_layers import encoder_layer

LAYER_PARAMETERS = 8
"""Of an encoder layer's norms and products outside attention."""

shared_attention = shared_kernel(aten._native_multi_head_attention.default, CPU_NESTED_KEY)
shared_layer = shared_kernel(aten._transformer_encoder_layer_fwd.default, CPU_NESTED_KEY)


@dataclass(frozen=True)
class Sequences:
    """Where the rows (T, E) of sequences are in a batch (B, L, E), and back; ``seen`` (B, 1, 1, L): which rows of the
    batch are of a sequence. These are None where sequences have one length.
    """

    batch: int
    length: int
    width: int
    device: torch.device
    into_batch: Maybe = None
    out_of_batch: Maybe = None
    seen: Maybe = None


_sequences = WeakTensorKeyDictionary()
"""By the sizes that the nested tensors of a model's layers share."""


def sequences_of(x: torch.Tensor, width: int) -> Sequences | None:
    """None for what is no nested tensor of sequences of vectors of one ``width``, one after the other in memory."""
    if not x.is_nested or not x.is_contiguous():
        return None
    sizes = sizes_of(x)
    found: Sequences | None = _sequences.get(sizes)
    if found is None or found.device != x.device:
        if sizes.dim() != 2 or sizes.shape[1] != 2 or not sizes[:, 0].any() or (sizes[:, 1] != sizes[0, 1]).any():
            return None
        found = _sequences[sizes] = sequences(sizes, x.device)
    return found if found.width == width else None


def sequences(sizes: torch.Tensor, device: torch.device) -> Sequences:
    """Those of sizes (B, 2), of which not all lengths are 0."""
    lengths, width = sizes[:, 0], int(sizes[0, 1])
    batch, length = len(lengths), int(lengths.max())
    seen = torch.arange(length) < lengths[:, None]
    if seen.all():
        return Sequences(batch, length, width, device)
    places = seen.flatten().nonzero()[:, 0]
    numbers = torch.zeros(batch * length, dtype=torch.int64)
    numbers[places] = torch.arange(len(places))
    there = [t.to(device) for t in (numbers, places, seen.view(batch, 1, 1, length))]
    return Sequences(batch, length, width, device, *there)


def attention(
    rows: torch.Tensor,
    among: Sequences,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
) -> torch.Tensor:
    """The rows (T, E) of self-attention within sequences."""
    projected = F.linear(rows, qkv_weight, qkv_bias)
    if among.into_batch is not None:
        projected = projected.index_select(0, among.into_batch)
    q, k, v = projected.view(among.batch, among.length, 3, num_heads, -1).transpose(1, 3).unbind(2)
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=among.seen).transpose(1, 2)
    lines = heads.reshape(among.batch * among.length, -1)
    if among.out_of_batch is not None:
        lines = lines.index_select(0, among.out_of_batch)
    return F.linear(lines, proj_weight, proj_bias)


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
    """A nested tensor, and attention weights, if wanted."""
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    is_own = query is key is value and mask is None and not need_weights
    among = sequences_of(query, embed_dim) if is_own else None
    if among is None:
        options = (mask, need_weights, average_attn_weights, mask_type)
        return shared_attention(query, key, value, embed_dim, num_head, *weights, *options)
    rows = buffer_of(query).view(-1, embed_dim)
    return nested_over(attention(rows, among, num_head, *weights), sizes_of(query)), None


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
    *rest: Any,
) -> torch.Tensor:
    """One encoder layer without dropout. ``rest``: the parameters of the norms and of the two products, and perhaps a
    mask and its type.
    """
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    parameters, masks = rest[:LAYER_PARAMETERS], rest[LAYER_PARAMETERS:]
    among = sequences_of(src, embed_dim) if all(mask is None for mask in masks) else None
    if among is None:
        options = (embed_dim, num_heads, *weights, use_gelu, norm_first, eps, *rest)
        return shared_layer(src, *options)
    rows = encoder_layer(
        buffer_of(src).view(-1, embed_dim),
        lambda x: attention(x, among, num_heads, *weights),
        embed_dim,
        use_gelu,
        norm_first,
        eps,
        *parameters,
    )
    return nested_over(rows, sizes_of(src))
