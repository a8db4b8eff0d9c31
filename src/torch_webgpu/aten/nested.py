"""Nested tensors as ``nn.TransformerEncoder`` makes them in evaluation: the sequences of a batch without their padding.

The memory of one is the padded batch (N, L, E), so that nothing is packed; how long each sequence is, the host knows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .attention import transformer_encoder_layer
from .results import name_of
from .torch_abi import aten, impl, on_cpu_key, on_cpu_nested_key

NESTED_KEY = "NestedTensorPrivateUse1"
METADATA = (aten._nested_tensor_size, aten._nested_tensor_strides, aten._nested_tensor_storage_offsets)
ENCODER_PARAMETERS = 19
"""Arguments of an encoder layer between the sequences and the mask."""


def nested(batch: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The first ``lengths`` (N), on the host, tokens of each sequence in the memory of ``batch`` (N, L, E)."""
    batch = batch.contiguous()
    n, length, features = batch.shape
    sizes = torch.stack([lengths, torch.full_like(lengths, features)], 1)
    strides = torch.tensor([features, 1]).repeat(n, 1)
    offsets = torch.arange(n) * (length * features) + batch.storage_offset()
    return on_cpu_key(aten._nested_view_from_buffer.default, batch.view(-1), sizes, strides, offsets)


def padded(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What :func:`nested` was made of, and where (N, L) it is beyond a sequence's end."""
    sizes, offsets = aten._nested_tensor_size.default(self), aten._nested_tensor_storage_offsets.default(self)
    (n, features), first = (sizes.shape[0], int(sizes[0, 1])), int(offsets[0])
    storage = self.untyped_storage()
    length = (storage.nbytes() // self.element_size() - first) // (n * features)
    shape, strides = (n, length, features), (length * features, features, 1)
    batch = torch.empty(0, dtype=self.dtype, device=self.device).set_(storage, first, shape, strides)
    lengths = sizes[:, 0].contiguous()
    beyond = torch.arange(length, device=self.device) >= lengths.to(self.device).unsqueeze(1)
    return batch, lengths, beyond


def lengths_in(t: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """How many elements of each row of ``mask`` are true, and whether these come first. Waits for the device."""
    if mask.dtype != torch.bool:
        raise RuntimeError(f"Expected mask to be of ScalarType Bool, but got {name_of(mask.dtype)} instead.")
    if mask.dim() != 2:
        raise RuntimeError("Padding mask should be 2D")
    if t.dim() != 3:
        raise RuntimeError("Input should be a 3D tensor, N * L * D")
    if t.shape[:2] != mask.shape:
        raise RuntimeError("Mask size should match input size")
    lengths = mask.sum(1)
    first = torch.arange(mask.shape[1], device=mask.device) < lengths.unsqueeze(1)
    *known, aligned = torch.cat([lengths, first.eq(mask).all().long().view(1)]).tolist()
    return torch.tensor(known, dtype=torch.int64), bool(aligned)


def mask_is_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Asked by ``nn.TransformerEncoder`` to find out whether it may use nested tensors."""
    return lengths_in(t, mask)[1] and t.numel() > 0


def nested_tensor_from_mask(t: torch.Tensor, mask: torch.Tensor, mask_check: bool = True) -> torch.Tensor:
    lengths, aligned = lengths_in(t, mask)
    if mask_check and not aligned:
        raise RuntimeError("Mask must be left-aligned without gaps")
    return nested(t.clone(memory_format=torch.contiguous_format), lengths)


def nested_encoder_layer(src: torch.Tensor, *rest: Any) -> torch.Tensor:
    """An encoder layer over the padded batch, which attends to nothing beyond a sequence's end."""
    if any(given is not None for given in rest[ENCODER_PARAMETERS:]):
        raise RuntimeError("MHA with a mask is not supported for nested tensors")
    batch, lengths, beyond = padded(src)
    arguments = (*rest[:ENCODER_PARAMETERS], beyond, 1)
    return nested(transformer_encoder_layer(batch, *arguments), lengths)


def to_padded_tensor(self: torch.Tensor, padding: float, output_size: Any = None) -> torch.Tensor:
    batch, lengths, beyond = padded(self)
    n, _, features = batch.shape
    longest = (n, int(lengths.max()), features)
    size = longest if output_size is None else tuple(output_size)
    if len(size) != len(longest):
        raise RuntimeError("Length of output_size does not match NestedTensor dims. Broadcasting is not supported.")
    if any(asked < needed for asked, needed in zip(size, longest)):
        raise RuntimeError("Value in output_size is less than NestedTensor padded size. Truncation is not supported.")
    kept = batch.masked_fill(beyond.unsqueeze(2), padding)[:, : size[1]]
    missing = [asked - have for asked, have in zip(size, kept.shape)]
    return F.pad(kept, (0, missing[2], 0, missing[1], 0, missing[0]), value=padding)


def register() -> None:
    impl(aten._nested_tensor_from_mask_left_aligned.default, mask_is_left_aligned)
    impl(aten._nested_tensor_from_mask.default, nested_tensor_from_mask)
    impl(aten._transformer_encoder_layer_fwd.default, nested_encoder_layer, NESTED_KEY)
    impl(aten.to_padded_tensor.default, to_padded_tensor, NESTED_KEY)
    for packet in METADATA:
        impl(packet.default, partial(on_cpu_nested_key, packet.default), NESTED_KEY)
