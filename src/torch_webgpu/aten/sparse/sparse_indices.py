"""Indices of sparse tensors from one layout to another, and what is wrong with them."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.torch_abi import aten


def row_starts(rows: torch.Tensor, size: int, *, out_int32: bool = False) -> torch.Tensor:
    """Where each of ``size`` rows starts, and the last ends (size + 1), among sorted row numbers."""
    starts = torch.searchsorted(rows, torch.arange(size + 1, device=rows.device, dtype=rows.dtype))
    return starts.to(torch.int32 if out_int32 else torch.int64)


def rows_of(starts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The row of each element of ``like``, given where each row starts; the same of each matrix of a batch."""
    numbers = torch.arange(like.shape[-1], device=like.device, dtype=starts.dtype).expand(like.shape).contiguous()
    return torch.searchsorted(starts.contiguous(), numbers, right=True) - 1


def both_indices(
    starts: torch.Tensor, columns: torch.Tensor, *, out_int32: bool = False, transpose: bool = False
) -> torch.Tensor:
    """COO indices of CSR ones; with ``transpose``, of CSC ones."""
    dtype = torch.int32 if out_int32 else torch.int64
    rows, columns = rows_of(starts, columns).to(dtype), columns.to(dtype)
    if starts.dim() == 1:
        return torch.stack([columns, rows] if transpose else [rows, columns])
    places = torch.stack([columns.flatten(), rows.flatten()] if transpose else [rows.flatten(), columns.flatten()])
    number = torch.arange(places.shape[1], device=starts.device) // max(columns.shape[-1], 1)
    batch = []
    for size in reversed(starts.shape[:-1]):
        batch.append((number % size).to(dtype))
        number = number // size
    return torch.cat([torch.stack(batch[::-1]), places])


def validate(is_rows: bool, starts: torch.Tensor, plain: torch.Tensor, *sizes: int) -> None:
    """Reads the indices back: what is wrong with them is an error here and now."""
    aten._validate_compressed_sparse_indices(is_rows, starts.cpu(), plain.cpu(), *sizes)
