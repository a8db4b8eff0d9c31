"""Searching and counting: searchsorted, bucketize, isin, unique, bincount, histc."""

from __future__ import annotations

from math import isfinite

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.recorded_once import always
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.strict import Strict
from torch_webgpu.aten.dispatch.torch_abi import aten, impl, is_webgpu
from torch_webgpu.dtypes import of as dtype_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.ir.ops import MissingKindError
from torch_webgpu.kernels.indexing.count_places import lower_count
from torch_webgpu.kernels.indexing.search import lower_search

from .compaction import run_begins, starts_of, totals, write_coordinates, write_selected
from .indexing import index_select, wrap_dim
from .sort import first_elements, first_places


def searchsorted(
    sequence: torch.Tensor,
    values: torch.Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    common = torch.result_type(sequence, values)
    if not isinstance(values, torch.Tensor):
        values = torch.full((), values, dtype=common, device=sequence.device)
    check_search(sequence, values, right, side, sorter)
    if common.is_complex:
        raise MissingKindError("ge", dtype_of(common).name)
    out = values.new_empty(values.shape, dtype=torch.int32 if out_int32 else torch.int64)
    if out.numel() == 0:
        return out
    if sequence.numel() == 0:
        return out.zero_()
    inputs = [sequence.to(common).contiguous(), values.to(common).contiguous()]
    if sorter is not None:
        inputs.append(sorter.contiguous())
    to_right = right or side == "right"
    record_kernel("searchsorted", inputs, [out], Extern(lower_search, (to_right,)))
    return out


def check_search(
    sequence: torch.Tensor, values: torch.Tensor, right: bool, side: str | None, sorter: torch.Tensor | None
) -> None:
    name = "torch.searchsorted()"
    check_devices([sequence, values] + ([sorter] if sorter is not None else []))
    if side is not None and side not in ("left", "right"):
        raise RuntimeError(f"{name}: side can only be 'left' or 'right' but got {side}")
    if right and side == "left":
        raise RuntimeError(f"{name}: side and right can't be set to opposites, got side of left while right was True")
    if sequence.dim() == 0:
        raise RuntimeError(f"{name}: boundaries tensor should have at least 1 dimension, but got 0 dimension")
    if sequence.dim() > 1 and values.dim() == 0:
        raise RuntimeError(
            f"{name}: input value can be a scalar only when boundaries tensor dimension is 1, but we got boundaries "
            f"tensor dim({sequence.dim()}) and input value's dim(0) numel(1)"
        )
    if sequence.dim() > 1 and sequence.shape[:-1] != values.shape[:-1]:
        raise RuntimeError(
            f"{name}: boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and "
            f"input value tensor must match, but we got boundaries tensor {list(sequence.shape)} and input value "
            f"tensor {list(values.shape)}"
        )
    if sorter is not None and sorter.shape != sequence.shape:
        raise RuntimeError(
            f"{name}: boundary and sorter must have the same size, but got boundary tensor {list(sequence.shape)} "
            f"and got sorter tensor {list(sorter.shape)}"
        )
    if sorter is not None and sorter.dtype != torch.int64:
        raise RuntimeError(f"{name}: sorter must be a tensor of long dtype but got dtype {sorter.dtype}")


def bucketize(
    self: torch.Tensor | float, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    if boundaries.dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def isin(
    elements: torch.Tensor | float,
    test_elements: torch.Tensor | float,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> torch.Tensor:
    """Whether each element is among ``test_elements``: a binary search among them, sorted. NaN is in nothing."""
    tensors = [t for t in (elements, test_elements) if isinstance(t, torch.Tensor)]
    check_devices(tensors)
    common = torch.result_type(elements, test_elements)
    device = next(t.device for t in tensors if is_webgpu(t))
    elements = torch.as_tensor(elements, dtype=common, device=device)
    if not isinstance(test_elements, torch.Tensor):
        return elements.ne(test_elements) if invert else elements.eq(test_elements)
    if test_elements.numel() == 0:
        return torch.full_like(elements, invert, dtype=torch.bool)
    known = test_elements.to(common).reshape(-1)
    known = first_elements(known, known.numel(), descending=False)[0]
    nearest = index_select(known, 0, searchsorted(known, elements.reshape(-1)).clamp_(max=known.numel() - 1))
    nearest = nearest.view(elements.shape)
    return elements.ne(nearest) if invert else elements.eq(nearest)


# unique


Unique = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def runs(
    begins: torch.Tensor, order: torch.Tensor | None, return_inverse: bool, return_counts: bool, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which of ``values`` stand where runs of equal elements begin, the run of each element, and each run's length.

    ``begins`` (n) tells where runs begin; ``order`` (n) which element stands at each place (None: they are as they
    were). What is not asked for is empty.
    """
    mask, starts = starts_of(begins)
    (count,) = totals([starts])
    found = write_selected("unique", values, mask, starts, count)
    inverse = found.new_empty(0, dtype=torch.int64)
    counts = found.new_empty(0, dtype=torch.int64)
    if return_inverse:
        inverse = torch.cumsum(begins, 0) - 1
        if order is not None:
            inverse = torch.empty_like(inverse).index_copy_(0, order, inverse)
    if return_counts:
        first = engine().empty((count, 1), torch.int64, begins.device.index)
        first = write_coordinates(mask, starts, begins.shape, first).view(-1)
        counts = torch.cat([first[1:], first.new_full((1,), begins.numel())]) - first
    return found, inverse, counts


def nothing_unique(self: torch.Tensor, return_inverse: bool) -> Unique:
    """The result for a tensor without elements."""
    none = self.new_empty(0, dtype=torch.int64)
    return self.new_empty(0), none.new_empty(self.shape) if return_inverse else none, none.clone()


def unique2(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Unique:
    if self.numel() == 0:
        return nothing_unique(self, return_inverse)
    values, order = first_elements(self.reshape(-1), self.numel(), descending=False)
    found, inverse, counts = runs(run_begins(values), order, return_inverse, return_counts, values)
    return found, inverse.view(self.shape) if return_inverse else inverse, counts


def unique(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return unique2(self, sorted, return_inverse)[:2]


def unique_consecutive(
    self: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    if self.numel() == 0:
        return nothing_unique(self, return_inverse)
    values = self.reshape(-1)
    found, inverse, counts = runs(run_begins(values), None, return_inverse, return_counts, values)
    return found, inverse.view(self.shape) if return_inverse else inverse, counts


def as_rows(self: torch.Tensor, dim: int) -> torch.Tensor:
    """The slices along ``dim`` as rows of a matrix."""
    if self.numel() == 0 and self.shape[dim]:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    return self.movedim(dim, 0).reshape(self.shape[dim], -1) if self.numel() else self.new_empty((0, 1))


def unique_rows(
    self: torch.Tensor, dim: int, order: torch.Tensor | None, return_inverse: bool, return_counts: bool
) -> Unique:
    rows = as_rows(self, dim)
    if order is not None:
        rows = index_select(rows, 0, order)
    begins = torch.ones(len(rows), dtype=torch.bool, device=self.device)
    begins[1:] = rows[1:].ne(rows[:-1]).any(1)
    places = torch.arange(len(rows), device=self.device) if order is None else order
    kept, inverse, counts = runs(begins, order, return_inverse, return_counts, places)
    return index_select(self, dim, kept), inverse, counts


def unique_dim(
    self: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Unique:
    """Slices in lexicographic order: stable sorts by one position of the slices after the other, the last one first."""
    dim = wrap_dim(dim, self.dim())
    if self.dim() == 0:
        result = unique2(self, sorted, return_inverse, return_counts)
        return result[0], result[1].view(-1), result[2]
    columns = as_rows(self, dim).t().contiguous()
    if columns.numel() == 0:
        return self.clone(), *nothing_unique(self.new_empty(0), return_inverse)[1:]
    order = torch.arange(columns.shape[1], device=self.device)
    for column in reversed(columns.unbind(0)):
        keys = index_select(column, 0, order)
        order = index_select(order, 0, first_places(keys, keys.numel(), descending=False))
    return unique_rows(self, dim, order, return_inverse, return_counts)


def unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Unique:
    dim = wrap_dim(dim, self.dim())
    if self.dim() == 0 or as_rows(self, dim).numel() == 0:
        return unique_dim(self, dim, True, return_inverse, return_counts)
    return unique_rows(self, dim, None, return_inverse, return_counts)


# Histograms


def counts_of(places: torch.Tensor, bins: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """How often each number below ``bins`` is among integers; others, negative ones too, are counted nowhere."""
    counts = engine().empty((bins,), dtype, places.device.index)
    if places.numel() == 0:
        return counts.zero_()
    record_kernel("counts", [places.reshape(-1).contiguous()], [counts], Extern(lower_count))
    return counts


def bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Waits for the device, to learn the largest value."""
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if self.dtype.is_floating_point or self.dtype.is_complex or self.dtype == torch.bool:
        raise NotImplementedError(f"\"bincount_cpu\" not implemented for '{name_of(self.dtype)}'")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if self.numel() == 0:
        return self.new_zeros(minlength, dtype=torch.int64)
    smallest, largest = torch.stack(torch.aminmax(self)).tolist()
    if smallest < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    bins = max(largest + 1, minlength)
    if weights is None:
        return counts_of(self, bins)
    dtype = weights.dtype if weights.dtype == torch.float32 else torch.float64
    return self.new_zeros(bins, dtype=dtype).scatter_add_(0, self.long(), weights.to(dtype))


def histc(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Counts in ``bins`` equal intervals; of the data's range, which the host waits for, when min equals max.

    Integers, which the CPU refuses, are counted as on CUDA: in integers throughout, the bounds cut to whole numbers.
    """
    if bins <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")
    if self.is_complex() or self.dtype == torch.bool:
        raise NotImplementedError(f"\"histogram_cpu\" not implemented for '{name_of(self.dtype)}'")
    whole = not self.is_floating_point()
    values = self.reshape(-1).long() if whole else self.reshape(-1)
    low, high = (whole_number(bound) if whole else float(bound) for bound in (min, max))
    if low == high and values.numel():
        low, high = torch.stack(torch.aminmax(values)).tolist()
    if low == high:
        low, high = low - 1, high + 1
    if not (isfinite(low) and isfinite(high)):
        raise RuntimeError(f"torch.histc: range of [{low:g}, {high:g}] is not finite")
    if low > high:
        raise RuntimeError("torch.histc: max must be larger than min")
    # Rounded to the dtype of the data at each step, as PyTorch does it: that decides where values on an edge go.
    scaled = (values - low) * bins
    places = scaled.div(high - low, rounding_mode="trunc") if whole else scaled / (high - low)
    # Not a number, where the range overflows, is nowhere.
    inside = values.ge(low).logical_and_(values.le(high)).logical_and_(places.ge(0))
    places = torch.where(inside, places, -1).int().clamp_(max=bins - 1)
    return counts_of(places, bins, torch.int32).to(self.dtype)


def whole_number(bound: float) -> int:
    if not isfinite(bound):
        raise RuntimeError("value cannot be converted to type int64_t without overflow")
    return int(bound)


def wrong_places(result: torch.Tensor, out: torch.Tensor) -> Exception:
    return RuntimeError(
        "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or Long(int64) depending on "
        f"whether out_int32 flag is True, but we got output tensor's dtype {name_of(out.dtype)} and out_int32 flag is "
        f"{result.dtype == torch.int32}"
    )


def register() -> None:
    impl(aten.bucketize.Scalar, bucketize)
    register_operator(aten.searchsorted.Tensor, searchsorted, strict=Strict(wrong_places))
    register_operator(aten.searchsorted.Scalar, searchsorted, strict=Strict(wrong_places))
    register_operator(aten.bucketize.Tensor, bucketize, strict=Strict(wrong_places))
    register_operator(aten.isin.Tensor_Tensor, isin, strict=Strict())
    register_operator(aten.isin.Tensor_Scalar, isin, strict=Strict())
    register_operator(aten.isin.Scalar_Tensor, isin, strict=Strict())
    register_operator(aten.histc.default, histc, strict=Strict())
    for overload, fn in (
        (aten.bincount.default, bincount),
        (aten._unique.default, unique),
        (aten._unique2.default, unique2),
        (aten.unique_dim.default, unique_dim),
        (aten.unique_consecutive.default, unique_consecutive),
        (aten.unique_dim_consecutive.default, unique_dim_consecutive),
    ):
        register_operator(overload, fn, by_mode=True, reads=always)
