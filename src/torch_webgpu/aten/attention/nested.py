"""Nested tensors in the strided layout: the elements of a batch of tensors of several sizes, one after the other.

PyTorch makes them for any device, and most of their operators are C++ that only calls operators on the buffer of all
elements, or on views into it (https://github.com/pytorch/pytorch/tree/main/aten/src/ATen/native/nested): registered for
the CPU, it serves webgpu here. Kernels that read memory have one of their own below. Sizes, strides and offsets are CPU
tensors. Nested tensors in the jagged layout are Python, in ``torch.nested``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.results import Maybe, name_of
from torch_webgpu.aten.dispatch.torch_abi import (
    aten,
    impl,
    library,
    overload_named,
    overloads_with_kernel,
    shared_kernel,
)

from . import nested_layers
from .nested_rows import CPU_NESTED_KEY, Rows, buffer_of, nested_over, nested_view_from_buffer, sizes_of

NESTED_KEY = "NestedTensorPrivateUse1"
READ_MEMORY = frozenset(("_nested_sum_backward", "_pin_memory", "is_pinned", "sum.dim_IntList"))
"""Kernels of the CPU that read memory and have no other here: these run on the CPU, counted."""

shared_to_padded_tensor = shared_kernel(aten.to_padded_tensor.default, CPU_NESTED_KEY)


def nested(padded: torch.Tensor, sizes: torch.Tensor, fuse_transform_0213: bool = False) -> torch.Tensor:
    """A nested tensor of copies of the elements of a padded one (N, …), of which tensor k has ``sizes[k]``."""
    if fuse_transform_0213:
        padded = padded.transpose(1, 2).flatten(2)
    if padded.dim() != sizes.shape[1] + 1:
        raise RuntimeError(f"dim: {padded.dim()}target_size: {sizes.shape[1]}")
    return nested_over(Rows(sizes, padded.shape).of_padded(padded), sizes)


def to_padded_tensor(self: torch.Tensor, padding: float, output_size: Sequence[int] | None = None) -> torch.Tensor:
    sizes = sizes_of(self)
    if not sizes.numel() or not self.is_contiguous():
        return shared_to_padded_tensor(self, padding, output_size)
    longest = (sizes.shape[0], *sizes.max(0).values.tolist())
    size = longest if output_size is None else tuple(output_size)
    if len(size) != len(longest):
        raise RuntimeError("Length of output_size does not match NestedTensor dims. Broadcasting is not supported.")
    if any(asked < needed for asked, needed in zip(size, longest)):
        raise RuntimeError("Value in output_size is less than NestedTensor padded size. Truncation is not supported.")
    if not prod(size):
        return torch.empty(size, dtype=self.dtype, device=self.device)
    return Rows(sizes, size).into_padded(buffer_of(self), size, padding)


# Masks of padding


def check_mask(t: torch.Tensor, mask: torch.Tensor) -> None:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"Expected mask to be of ScalarType Bool, but got {name_of(mask.dtype)} instead.")
    if mask.dim() != 2:
        raise RuntimeError("Padding mask should be 2D")
    if t.dim() != 3:
        raise RuntimeError("Input should be a 3D tensor, N * L * D")
    if t.shape[:2] != mask.shape:
        raise RuntimeError("Mask size should match input size")


def lengths_in(mask: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """How many elements of each row of ``mask`` are true, and whether these come first. Waits for the device."""
    lengths = mask.sum(1)
    first = torch.arange(mask.shape[1], device=mask.device) < lengths.unsqueeze(1)
    *known, aligned = torch.cat([lengths, first.eq(mask).all().long().view(1)]).tolist()
    return torch.tensor(known, dtype=torch.int64), bool(aligned)


def mask_is_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Asked by ``nn.TransformerEncoder`` to find out whether it may use nested tensors."""
    check_mask(t, mask)
    return lengths_in(mask)[1] and t.numel() > 0


def nested_tensor_from_mask(t: torch.Tensor, mask: torch.Tensor, mask_check: bool = True) -> torch.Tensor:
    check_mask(t, mask)
    if mask_check:
        lengths, aligned = lengths_in(mask)
        if not aligned:
            raise RuntimeError("Mask must be left-aligned without gaps")
    else:
        lengths = mask.sum(1).cpu()
    return nested(t, torch.stack([lengths, torch.full_like(lengths, t.shape[2])], 1))


# Layers


def layer_norm(
    self: torch.Tensor, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The statistics have one dimension, as the CPU's."""
    overload, sizes = aten.native_layer_norm.default, sizes_of(self)
    whole = sizes.shape[1] >= len(normalized_shape) > 0 and bool(
        (sizes[:, -len(normalized_shape) :] == torch.tensor(list(normalized_shape))).all()
    )
    if weight is None or bias is None or not whole or not sizes.numel() or not self.is_contiguous():
        return run_on_cpu(overload, (self, normalized_shape, weight, bias, eps), {}, "it refuses these arguments")
    rows = buffer_of(self).view(-1, *normalized_shape)
    out, mean, rstd = overload(rows, normalized_shape, weight, bias, eps)
    return nested_over(out, sizes.clone()), mean.view(-1), rstd.view(-1)


def layer_norm_backward(
    grad_out: torch.Tensor,
    self: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    rows, grad_rows = [buffer_of(t.contiguous()).view(-1, *normalized_shape) for t in (self, grad_out)]
    statistics = [t.view(-1, *[1] * len(normalized_shape)) for t in (mean, rstd)]
    overload = aten.native_layer_norm_backward.default
    grad, *others = overload(grad_rows, rows, normalized_shape, *statistics, weight, bias, output_mask)
    return (None if grad is None else nested_over(grad, sizes_of(self).clone()), *others)


def heads_of_projection(
    qkv: torch.Tensor, qkv_bias: torch.Tensor, num_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, divided by the root of their length, keys and values (B, heads, L, E) of their projection
    (B, L, 3 · heads · E), of a nested tensor padded.
    """
    padded = to_padded_tensor(qkv, 0) if qkv.is_nested else qkv
    split = (padded + qkv_bias).unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).contiguous()
    return split[0].mul_(split.shape[-1] ** -0.5), split[1], split[2]


def softmax_within(self: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The softmax of scores (B, heads, L, L) over each sequence's own keys; zeros beyond its end."""
    beyond = (torch.arange(self.shape[2]) >= sizes_of(query)[:, :1]).to(self.device)
    keys, queries = beyond[:, None, None, :], beyond[:, None, :, None]
    return self.masked_fill(keys, float("-inf")).softmax(-1).masked_fill(keys | queries, 0)


KERNELS = {
    aten.to_padded_tensor.default: to_padded_tensor,
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten._transform_bias_rescale_qkv.default: heads_of_projection,
    aten._nested_tensor_softmax_with_shape.default: softmax_within,
    aten._native_multi_head_attention.default: nested_layers.native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: nested_layers.transformer_encoder_layer,
}


def on_cpu(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return run_on_cpu(overload, args, kwargs, "it has no kernel for nested webgpu tensors")


def register() -> None:
    impl(aten._nested_tensor_from_mask_left_aligned.default, mask_is_left_aligned)
    impl(aten._nested_tensor_from_mask.default, nested_tensor_from_mask)
    impl(aten._nested_view_from_buffer.default, nested_view_from_buffer)
    impl(aten._nested_from_padded.default, nested)
    impl(aten._transform_bias_rescale_qkv.default, heads_of_projection)
    impl(aten._nested_tensor_softmax_with_shape.default, softmax_within)
    for name in overloads_with_kernel(CPU_NESTED_KEY):
        overload = overload_named(name)
        if name.removeprefix("aten::") in READ_MEMORY:
            kernel: Any = partial(on_cpu, overload)
        else:
            kernel = KERNELS.get(overload) or shared_kernel(overload, CPU_NESTED_KEY)
        library(NESTED_KEY).impl(overload, kernel, NESTED_KEY)
