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

from .nested_rows import CPU_NESTED_KEY, Rows, buffer_of, nested_over, sizes_of
from .transformer_layers import encoder_layer

LAYER_PARAMETERS = 8
"""Of an encoder layer's norms and products outside attention."""

shared_attention = shared_kernel(aten._native_multi_head_attention.default, CPU_NESTED_KEY)
shared_layer = shared_kernel(aten._transformer_encoder_layer_fwd.default, CPU_NESTED_KEY)


@dataclass(frozen=True)
class Sequences:
    """Where the rows (T, E) of sequences are in a batch (B, L, E), and back; ``seen`` (B, 1, 1, L): which rows of the
    batch are of a sequence. All None where sequences have one length.
    """

    batch: int
    length: int
    into_batch: Maybe = None
    out_of_batch: Maybe = None
    seen: Maybe = None


_sequences = WeakTensorKeyDictionary()
"""By the sizes that the nested tensors of a model's layers share."""


def sequences_of(sizes: torch.Tensor, device: torch.device) -> Sequences:
    found: Sequences | None = _sequences.get(sizes)
    if found is None or (found.seen is not None and found.seen.device != device):
        found = _sequences[sizes] = sequences(sizes, device)
    return found


def sequences(sizes: torch.Tensor, device: torch.device) -> Sequences:
    lengths = sizes[:, 0]
    batch, length = len(lengths), int(lengths.max())
    if bool((lengths == length).all()):
        return Sequences(batch, length)
    places = Rows(sizes, (batch, length, int(sizes[0, 1]))).numbers
    numbers = torch.zeros(batch * length, dtype=torch.int64)
    numbers[places] = torch.arange(len(places))
    seen = (torch.arange(length) < lengths[:, None]).view(batch, 1, 1, length)
    return Sequences(batch, length, numbers.to(device), places.to(device), seen.to(device))


def are_sequences(x: torch.Tensor, width: int) -> bool:
    """Whether a nested tensor is of sequences of vectors of one ``width``, one after the other in memory."""
    if not x.is_nested or not x.is_contiguous():
        return False
    sizes = sizes_of(x)
    return sizes.dim() == 2 and sizes.shape[1] == 2 and bool((sizes[:, 1] == width).all()) and bool(sizes[:, 0].any())


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
    if not is_own or not are_sequences(query, embed_dim):
        options = (mask, need_weights, average_attn_weights, mask_type)
        return shared_attention(query, key, value, embed_dim, num_head, *weights, *options)
    sizes = sizes_of(query)
    rows = buffer_of(query).view(-1, embed_dim)
    return nested_over(attention(rows, sequences_of(sizes, query.device), num_head, *weights), sizes), None


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
    if any(mask is not None for mask in masks) or not are_sequences(src, embed_dim):
        options = (embed_dim, num_heads, *weights, use_gelu, norm_first, eps, *rest)
        return shared_layer(src, *options)
    sizes = sizes_of(src)
    among = sequences_of(sizes, src.device)
    rows = encoder_layer(
        buffer_of(src).view(-1, embed_dim),
        lambda x: attention(x, among, num_heads, *weights),
        embed_dim,
        use_gelu,
        norm_first,
        eps,
        *parameters,
    )
    return nested_over(rows, sizes)
