"""Memory that tensors share where they may not: what PyTorch's ``assert_no_internal_overlap``, ``assert_no_overlap``
and ``assert_no_partial_overlap`` (ATen/MemoryOverlap.h) refuse, in its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_webgpu.layout import extent, is_dense, overlaps_itself


def check_writable(shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raises if two elements of what is written are one in memory."""
    if overlaps_itself(tuple(shape), tuple(strides)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def check_apart(out: torch.Tensor, values: Sequence[Any]) -> None:
    """Raises if ``out`` and a tensor among ``values`` share memory."""
    for value in values:
        if isinstance(value, (list, tuple)):
            check_apart(out, value)
        elif isinstance(value, torch.Tensor) and overlap(value, out):
            raise shares_memory()


def check_not_partly(out: torch.Tensor, values: Sequence[torch.Tensor]) -> None:
    """Raises if ``out`` and one of ``values`` share memory without being one part of it, element by element."""
    if any(overlap(value, out) and not is_same(value, out) for value in values):
        raise shares_memory()


def shares_memory() -> RuntimeError:
    return RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
        "location. Please clone() the tensor before performing the operation."
    )


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are one part of one storage."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors without gaps share memory; like PyTorch, this does not judge those with gaps."""
    if not is_dense(a.shape, a.stride()) or not is_dense(b.shape, b.stride()):
        return False
    if a.device != b.device or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (begin_a, end_a), (begin_b, end_b) = (
        (t.storage_offset() * t.element_size(), (t.storage_offset() + extent(t.shape, t.stride())) * t.element_size())
        for t in (a, b)
    )
    return begin_a < end_b and begin_b < end_a
