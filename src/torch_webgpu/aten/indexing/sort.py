"""sort and what follows from it: topk, kthvalue, median, mode. Indices of equal elements come in order; NaN is last."""

from __future__ import annotations

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.strict import Strict
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.ir.ops import MissingKindError
from torch_webgpu.kernels.sorting.sort import lower_sort

from .indexing import gather, wrap_dim


def first_places(rows: torch.Tensor, k: int, descending: bool) -> torch.Tensor:
    """Places of the first ``k`` elements of each row of a (..., n) tensor in order, int64 (..., k)."""
    return sorted_rows(rows, k, descending, has_values=False)[-1]


def first_elements(rows: torch.Tensor, k: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``k`` elements of each row of a (..., n) tensor in order, and their places, int64, both (..., k)."""
    if dtype_of(rows.dtype).itemsize < 4:  # elements that share a word cannot be stored one by one
        places = first_places(rows, k, descending)
        return gather(rows, -1, places), places
    values, places = sorted_rows(rows, k, descending, has_values=True)
    return values, places


def sorted_rows(rows: torch.Tensor, k: int, descending: bool, has_values: bool) -> list[torch.Tensor]:
    if rows.is_complex():
        raise MissingKindError("order", dtype_of(rows.dtype).name)
    rows = rows.contiguous()
    n = rows.shape[-1]
    dtypes = [rows.dtype, torch.int64] if has_values else [torch.int64]
    results = [engine().empty((rows.numel() // n, k), dtype, rows.device.index) for dtype in dtypes]
    record_kernel("sort", [rows.view(-1, n)], results, Extern(lower_sort, (descending,)))
    return [result.view(*rows.shape[:-1], k) for result in results]


def in_order(self: torch.Tensor, dim: int, k: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``k`` values along ``dim`` in order and their indices, each with ``dim`` last; k > 0."""
    return first_elements(self.movedim(dim, -1), k, descending)


def laid_out(like: torch.Tensor, value: torch.Tensor, dim: int) -> torch.Tensor:
    """``value``, which has ``dim`` last, in the layout of ``like``."""
    moved = value.movedim(-1, dim)
    return moved if moved.stride() == like.stride() else like.copy_(moved)


def sort(
    self: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = outputs_of(aten.sort.stable, self, stable=stable, dim=dim, descending=descending)
    if self.dim() == 0:
        return values.copy_(self), indices.zero_()
    dim = wrap_dim(dim, self.dim())
    if values.numel():
        found, places = in_order(self, dim, self.shape[dim], descending)
        return laid_out(values, found, dim), laid_out(indices, places, dim)
    return values, indices


def topk(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = outputs_of(aten.topk.default, self, k, dim, largest, sorted)
    if self.dim() == 0 and values.numel():
        return values.copy_(self), indices.zero_()
    dim = wrap_dim(dim, self.dim())
    if values.numel():
        found, places = in_order(self, dim, k, largest)
        return laid_out(values, found, dim), laid_out(indices, places, dim)
    return values, indices


def pick(
    values: torch.Tensor, places: torch.Tensor, position: torch.Tensor, dim: int, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The value and the place at ``position`` (..., 1) of sorted rows, with ``dim`` put back or dropped."""
    found = gather(values, -1, position), gather(places, -1, position)
    return tuple(t.movedim(-1, dim) if keepdim else t.squeeze(-1) for t in found)  # type: ignore[return-value]


def kthvalue(self: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if self.dtype == torch.bool:
        raise NotImplementedError("\"kthvalue_cpu\" not implemented for 'Bool'")
    dim = wrap_dim(dim, self.dim())
    size = self.shape[dim] if self.dim() else 1
    if self.dim() and size == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {dim} to have non-zero size.")
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    if self.dim() == 0:
        return self.clone(), self.new_zeros((), dtype=torch.int64)
    if self.numel() == 0:
        return empty_pair(self, dim, keepdim)
    values, places = in_order(self, dim, k, descending=False)
    found = values[..., k - 1 :], places[..., k - 1 :]
    return tuple((t.movedim(-1, dim) if keepdim else t.squeeze(-1)).clone() for t in found)  # type: ignore[return-value]


def empty_pair(self: torch.Tensor, dim: int, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of a reduction over ``dim`` of a tensor without elements."""
    shape = list(self.shape)
    shape[dim : dim + 1] = [1] if keepdim else []
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


def median_along(
    self: torch.Tensor, dim: int, keepdim: bool, ignore_nan: bool, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower median. A NaN is the median of what it is in (its first one), unless NaNs are ignored."""
    dim = wrap_dim(dim, self.dim())
    if self.dim() == 0:
        return self.clone(), self.new_zeros((), dtype=torch.int64)
    n = self.shape[dim]
    if n == 0:
        raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")
    if self.numel() == 0:
        return empty_pair(self, dim, keepdim)
    values, places = in_order(self, dim, n, descending=False)
    if not self.dtype.is_floating_point:
        middle = slice((n - 1) // 2, (n - 1) // 2 + 1)
        found = values[..., middle], places[..., middle]
        return tuple((t.movedim(-1, dim) if keepdim else t.squeeze(-1)).clone() for t in found)  # type: ignore[return-value]
    numbers = torch.isnan(values).logical_not_().sum(-1, keepdim=True)
    if ignore_nan:
        position = torch.div(numbers - 1, 2, rounding_mode="floor").clamp_(min=0)
    else:
        position = torch.where(numbers == n, (n - 1) // 2, numbers)
    return pick(values, places, position, dim, keepdim)


def median_dim(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return median_along(self, dim, keepdim, False, "median")


def nanmedian_dim(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return median_along(self, dim, keepdim, True, "nanmedian")


def median(self: torch.Tensor) -> torch.Tensor:
    return median_of_all(self, ignore_nan=False)


def nanmedian(self: torch.Tensor) -> torch.Tensor:
    return median_of_all(self, ignore_nan=True)


def median_of_all(self: torch.Tensor, ignore_nan: bool) -> torch.Tensor:
    if self.numel() == 0:
        return self.new_full((), float("nan"))
    return median_along(self.reshape(-1), 0, False, ignore_nan, "median")[0]


def mode(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest of the most frequent values, and the index of its last occurrence."""
    dim = wrap_dim(dim, self.dim())
    if self.dim() == 0:
        return self.clone(), self.new_zeros((), dtype=torch.int64)
    if self.shape[dim] == 0:
        raise IndexError(f"mode(): Expected reduction dim {dim} to have non-zero size.")
    if self.numel() == 0:
        return empty_pair(self, dim, keepdim)
    values, places = in_order(self, dim, self.shape[dim], descending=False)
    ends = torch.searchsorted(values, values, right=True)
    if values.is_floating_point():
        # A NaN, which comes last, equals nothing: the last of the numbers end before the first, and it occurs once.
        ends = ends.minimum(torch.isnan(values).logical_not_().sum(-1, keepdim=True))
    frequency = (ends - torch.searchsorted(values, values)).clamp_(min=1)
    longest = frequency.argmax(-1, keepdim=True)
    return pick(values, places, longest + gather(frequency, -1, longest) - 1, dim, keepdim)


def register() -> None:
    for overload, fn in (
        (aten.sort.stable, sort),
        (aten.topk.default, topk),
        (aten.median.dim, median_dim),
        (aten.nanmedian.dim, nanmedian_dim),
        (aten.median.default, median),
        (aten.nanmedian.default, nanmedian),
        (aten.mode.default, mode),
    ):
        register_operator(overload, fn, strict=Strict(apart="none"))
    register_operator(aten.kthvalue.default, kthvalue, strict=Strict())
