"""Jagged rows as a padded batch, which ``to_padded_tensor`` of a jagged nested tensor asks for."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.padded import lower_padded


def jagged_to_padded(
    values: torch.Tensor, offsets: Sequence[torch.Tensor], max_lengths: Sequence[int], padding_value: float = 0.0
) -> torch.Tensor:
    """One jagged dimension, as on the CPU; CUDA has more."""
    overload = aten._jagged_to_padded_dense_forward.default
    (out,) = outputs_of(overload, values, offsets, max_lengths, padding_value)
    if len(offsets) != 1:
        raise RuntimeError(f"_jagged_to_padded_dense_forward(): only 1D jagged tensors, not {len(offsets)}D")
    if not values.numel():
        return out.fill_(padding_value)
    if out.numel():
        columns = prod(values.shape[1:])
        batch = out.view(*out.shape[:2], columns)
        inputs = [values.reshape(len(values), columns), offsets[0].contiguous()]
        record_kernel(overload._schema.name, inputs, [batch], Extern(lower_padded, (float(padding_value),)))
    return out


def register() -> None:
    register_operator(aten._jagged_to_padded_dense_forward.default, jagged_to_padded)
