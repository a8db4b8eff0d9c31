"""The buffers of nested tensors, and their rows in padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import torch

from torch_webgpu.aten.dispatch.torch_abi import aten, on_cpu_key

CPU_NESTED_KEY = "NestedTensorCPU"

nested_view_from_buffer = partial(on_cpu_key, aten._nested_view_from_buffer.default)


def sizes_of(nested: torch.Tensor) -> torch.Tensor:
    """The sizes (N, dimensions) of the tensors in a nested one, on the host."""
    return aten._nested_tensor_size.default(nested)


def nested_over(buffer: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """A nested tensor over the elements of a contiguous buffer, which it shares."""
    strides, offsets = aten._nested_compute_contiguous_strides_offsets(sizes)
    return nested_view_from_buffer(buffer.view(-1), sizes, strides, offsets)


def buffer_of(nested: torch.Tensor) -> torch.Tensor:
    """The elements of a contiguous nested tensor, one after the other; shared."""
    return torch.empty(0, dtype=nested.dtype, device=nested.device).set_(nested.untyped_storage())


class Rows:
    """Where the elements of tensors of these sizes (N, dimensions) are in a padded tensor of ``shape``, in rows: what
    all tensors have whole.

    ``numbers``: those of the rows in the padded tensor, row-major, on the host.
    """

    def __init__(self, sizes: torch.Tensor, shape: Sequence[int]) -> None:
        split, n = len(shape), sizes.shape[0]
        while split > 1 and bool((sizes[:, split - 2] == shape[split - 1]).all()):
            split -= 1
        self.count, self.length = prod(shape[:split]), prod(shape[split:])
        kept = torch.ones((n, *shape[1:split]), dtype=torch.bool)
        for dim in range(1, split):
            inside = torch.arange(shape[dim]) < sizes[:, dim - 1 : dim]
            kept &= inside.view(n, *[1] * (dim - 1), shape[dim], *[1] * (split - dim - 1))
        self.numbers = kept.flatten().nonzero()[:, 0]

    def of_padded(self, padded: torch.Tensor) -> torch.Tensor:
        """The rows (count, length) of a padded tensor, one after the other."""
        rows = padded.reshape(-1, self.length)
        return rows.index_select(0, self.numbers.to(padded.device))

    def into_padded(self, buffer: torch.Tensor, shape: Sequence[int], padding: float) -> torch.Tensor:
        """The inverse."""
        padded = buffer.new_full((self.count, self.length), padding)
        padded.index_copy_(0, self.numbers.to(buffer.device), buffer.view(-1, self.length))
        return padded.view(*shape)
