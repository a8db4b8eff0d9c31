"""Histograms of one dimension and of several: bins found by bisection, to which counts or weights are added."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.aten.dispatch.recorded_once import always
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices
from torch_webgpu.aten.dispatch.results import name_of, not_implemented
from torch_webgpu.aten.dispatch.strict import CPP_NAMES, Strict
from torch_webgpu.aten.dispatch.torch_abi import aten

from .search import counts_of, searchsorted

DTYPES = (torch.float32, torch.float64)
Range = Sequence[float] | None
Weight = torch.Tensor | None
HISTOGRAM, HISTOGRAM_OF_EDGES = aten.histogram.bin_ct, aten.histogram.bins_tensor
EDGES, COUNTS, OF_EDGES = (
    aten._histogramdd_bin_edges.default,
    aten._histogramdd_from_bin_cts.default,
    aten._histogramdd_from_bin_tensors.default,
)


def check(
    target: OpOverload,
    self: torch.Tensor,
    points: torch.Tensor,
    sizes: Sequence[int],
    valid: bool,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Of points (count, dimensions) in bins of these numbers: what the CPU refuses, in its words."""
    weight = kwargs.get("weight")
    check_devices([self, *([weight] if weight is not None else [])])
    fits = weight is None or (weight.dtype == self.dtype and weight.numel() == len(points))
    if not (valid and fits and len(sizes) == points.shape[-1] and all(size > 0 for size in sizes)):
        check_as_cpu(target, self, *args, **kwargs)
    if self.dtype not in DTYPES:
        raise not_implemented("histogramdd", self.dtype)


def bounds(points: torch.Tensor, given: Range) -> list[tuple[float, float]]:
    """The first and the last edge of each dimension; without a range those of the points, for which the host waits."""
    dimensions = points.shape[-1]
    if given is not None:
        found = [(given[2 * d], given[2 * d + 1]) for d in range(dimensions)]
    elif not points.numel():
        found = [(0.0, 1.0)] * dimensions
    else:
        low, high = torch.stack([points.amin(0), points.amax(0)]).tolist()
        found = list(zip(low, high))
    for dimension, (first, last) in enumerate(found):
        if not (isfinite(first) and isfinite(last)):
            raise RuntimeError(f"torch.histogramdd: dimension {dimension}'s range [{first:g}, {last:g}] is not finite")
        if first > last:
            raise RuntimeError(
                f"torch.histogramdd: min should not exceed max, but got min {first:g} max {last:g} for dimension "
                f"{dimension}"
            )
    return [(first - 0.5, last + 0.5) if first == last else (first, last) for first, last in found]


def even_edges(points: torch.Tensor, bins: Sequence[int], given: Range) -> list[torch.Tensor]:
    limits = bounds(points, given)
    return [
        torch.linspace(first, last, count + 1, dtype=points.dtype, device=points.device)
        for count, (first, last) in zip(bins, limits)
    ]


def counted(points: torch.Tensor, edges: Sequence[torch.Tensor], weight: Weight, density: bool) -> torch.Tensor:
    """The histogram of points (count, dimensions): the last bin has its last edge, NaN is nowhere."""
    shape = [e.numel() - 1 for e in edges]
    place = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    inside = torch.ones(len(points), dtype=torch.bool, device=points.device)
    for values, e, bins in zip(points.unbind(-1), edges, shape):
        bin_ = searchsorted(e, values.contiguous(), right=True) - 1
        place = place * bins + bin_.clamp(min=0, max=bins - 1)
        inside = inside & (values >= e[0]) & (values <= e[-1])
    if weight is None:
        hist = counts_of(torch.where(inside, place, -1), prod(shape), torch.int32)
    else:
        amounts = torch.where(inside, weight.reshape(-1), 0)
        hist = amounts.new_zeros(prod(shape)).scatter_add_(0, place, amounts)
    hist = hist.to(points.dtype).view(shape)
    if density:
        hist = hist / hist.sum()
        for d, e in enumerate(edges):
            hist = hist / e.diff().view([-1 if k == d else 1 for k in range(len(edges))])
    return hist


def histogram(
    self: torch.Tensor, bins: int = 100, *, range: Range = None, weight: Weight = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    points = self.reshape(-1, 1)
    valid = range is None or len(range) == 2
    check(HISTOGRAM, self, points, [bins], valid, bins, range=range, weight=weight, density=density)
    edges = even_edges(points, [bins], range)
    return counted(points, edges, weight, density), edges[0]


def histogram_of_edges(
    self: torch.Tensor, bins: torch.Tensor, *, weight: Weight = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    points = self.reshape(-1, 1)
    valid = bins.dim() == 1 and bins.dtype == self.dtype
    check(HISTOGRAM_OF_EDGES, self, points, [bins.numel() - 1], valid, bins, weight=weight, density=density)
    return counted(points, [bins], weight, density), bins.clone()


def as_points(self: torch.Tensor) -> torch.Tensor:
    return self.reshape(-1, self.shape[-1]) if self.dim() >= 2 else self.reshape(-1, 1)


def bin_edges(
    self: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: Weight = None,
    density: bool = False,
    target: OpOverload = EDGES,
) -> list[torch.Tensor]:
    points = as_points(self)
    valid = self.dim() >= 2 and (range is None or len(range) == 2 * points.shape[-1])
    check(target, self, points, bins, valid, bins, range=range, weight=weight, density=density)
    return even_edges(points, bins, range)


def from_bin_counts(
    self: torch.Tensor, bins: Sequence[int], *, range: Range = None, weight: Weight = None, density: bool = False
) -> torch.Tensor:
    edges = bin_edges(self, bins, range=range, weight=weight, density=density, target=COUNTS)
    return counted(as_points(self), edges, weight, density)


def from_bin_tensors(
    self: torch.Tensor, bins: Sequence[torch.Tensor], *, weight: Weight = None, density: bool = False
) -> torch.Tensor:
    points = as_points(self)
    valid = self.dim() >= 2 and all(e.dim() == 1 and e.dtype == self.dtype for e in bins)
    sizes = [e.numel() - 1 for e in bins]
    check(OF_EDGES, self, points, sizes, valid, bins, weight=weight, density=density)
    return counted(points, bins, weight, density)


def wrong_dtype(result: torch.Tensor, out: torch.Tensor) -> Exception:
    return RuntimeError(
        "torch.histogram: input tensor and hist tensor should have the same dtype, but got input "
        f"{CPP_NAMES.get(result.dtype, name_of(result.dtype))} and hist {CPP_NAMES.get(out.dtype, name_of(out.dtype))}"
    )


def register() -> None:
    strict = Strict(wrong_dtype, apart="none")
    register_operator(HISTOGRAM, histogram, by_mode=True, reads=always, strict=strict)
    register_operator(HISTOGRAM_OF_EDGES, histogram_of_edges, strict=strict)
    register_operator(EDGES, bin_edges, by_mode=True, reads=always)
    register_operator(COUNTS, from_bin_counts, by_mode=True, reads=always)
    register_operator(OF_EDGES, from_bin_tensors)
