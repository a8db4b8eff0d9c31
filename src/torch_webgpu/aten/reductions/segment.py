"""segment_reduce and its gradient: reductions of stretches of one dimension, given by lengths or offsets."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.refusals import check_as_cpu
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import Maybe, not_implemented
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.segment import lower_segment

REDUCTIONS = ("sum", "mean", "min", "max", "prod")
Number = int | float


class Segments(NamedTuple):
    """Where the segments of lines of ``length`` elements begin and end: int32 (lines, segments + 1)."""

    offsets: torch.Tensor
    lines: int
    length: int
    inner: int

    @property
    def number(self) -> int:
        return self.offsets.shape[1] - 1

    @property
    def lengths(self) -> torch.Tensor:
        return self.offsets.diff(dim=1).unsqueeze(-1)

    def lined(self, t: torch.Tensor) -> torch.Tensor:
        """(lines, ·, inner)."""
        return t.reshape(self.lines, -1, self.inner)

    def reduced(self, data: torch.Tensor, reduce: str, checks: bool = False) -> torch.Tensor:
        """(lines, segments, inner) of (lines, length, inner); without elements the reduction's identity."""
        out = data.new_empty((self.lines, self.number, self.inner))
        if out.numel():
            kernel = Extern(lower_segment, (reduce, checks))
            record_kernel("aten::segment_reduce", [data, self.offsets], [out], kernel)
        return out

    def spread(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(lines, segments, inner) as (lines, length, inner): what each element's segment has; where there is one."""
        places = torch.arange(self.length, dtype=torch.int32, device=t.device).expand(self.lines, -1)
        segment = torch.searchsorted(self.offsets[:, 1:].contiguous(), places.contiguous(), right=True)
        inside = ((segment < self.number) & (places >= self.offsets[:, :1])).unsqueeze(-1)
        index = segment.clamp_(max=self.number - 1).unsqueeze(-1).expand(-1, -1, self.inner)
        return t.gather(1, index), inside


def segments_of(data: torch.Tensor, lengths: Maybe, offsets: Maybe, axis: int) -> Segments:
    if offsets is None:
        assert lengths is not None
        ends = lengths.cumsum(-1, dtype=torch.int64)
        offsets = torch.nn.functional.pad(ends, (1, 0))
    lines, inner = prod(data.shape[:axis]), prod(data.shape[axis + 1 :])
    return Segments(offsets.reshape(lines, -1).to(torch.int32), lines, data.shape[axis], inner)


def segment_reduce(
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: Maybe = None,
    indices: Maybe = None,
    offsets: Maybe = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> torch.Tensor:
    """Lengths that are negative, or are not those of whole lines, are an error when the host next waits."""
    given = lengths if offsets is None else offsets
    axis = axis + data.dim() if axis < 0 else axis
    if (
        given is None
        or indices is not None
        or reduce not in REDUCTIONS
        or axis != given.dim() - 1
        or given.dim() > data.dim()
        or given.dtype not in (torch.int32, torch.int64)
    ):
        sizes = {"lengths": lengths, "indices": indices, "offsets": offsets}
        check_as_cpu(aten.segment_reduce.default, data, reduce, axis=axis, unsafe=True, initial=initial, **sizes)
    if not data.is_floating_point():
        raise not_implemented("_segment_reduce_cpu", data.dtype)
    segments = segments_of(data, lengths, offsets, axis)
    kind = "sum" if reduce == "mean" else reduce
    total = segments.reduced(segments.lined(data), kind, checks=not unsafe and offsets is None)
    if initial is not None:
        total = begun(total, kind, initial)
    if reduce == "mean":
        counts, nothing = segments.lengths, float("nan") if initial is None else initial
        total = torch.where(counts > 0, total / counts, nothing)
    return total.view(*data.shape[:axis], segments.number, *data.shape[axis + 1 :])


def begun(total: torch.Tensor, reduce: str, initial: Number) -> torch.Tensor:
    """A reduction that begins with a number."""
    if reduce == "sum":
        return total + initial
    if reduce == "prod":
        return total * initial
    first = total.new_full((), initial)
    return total.maximum(first) if reduce == "max" else total.minimum(first)


def segment_reduce_backward(
    grad: torch.Tensor,
    output: torch.Tensor,
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: Maybe = None,
    offsets: Maybe = None,
    axis: int = 0,
    initial: Number | None = None,
) -> torch.Tensor:
    axis = axis + data.dim() if axis < 0 else axis
    segments = segments_of(data, lengths, offsets, axis)
    if not data.numel() or not output.numel():
        return torch.zeros(data.shape, dtype=data.dtype, device=data.device)
    x, g = segments.lined(data), segments.lined(grad)
    if reduce == "mean":
        g = g / segments.lengths
    elif reduce == "prod":
        return of_product(segments, x, g, segments.lined(output), initial).view(data.shape)
    spread, inside = segments.spread(g)
    if reduce in ("max", "min"):
        inside = inside & (x.isnan() | (x == segments.spread(segments.lined(output))[0]))
        counts, _ = segments.spread(segments.reduced(inside.to(torch.float32), "sum"))
        # As the CPU does, which parts positive gradients alone.
        spread = torch.where((counts >= 2) & (spread > 0), spread / counts, spread)
    return torch.where(inside, spread, 0).to(data.dtype).view(data.shape)


def of_product(
    segments: Segments, x: torch.Tensor, grad: torch.Tensor, output: torch.Tensor, initial: Number | None
) -> torch.Tensor:
    """The product of a segment's other elements: by division, but for zeros and NaN."""
    is_nan, special = x.isnan(), x.isnan() | (x == 0)
    others = segments.reduced(torch.where(special, 1, x), "prod") * (1 if initial is None else initial)
    spread, inside = segments.spread(grad)
    count, _ = segments.spread(segments.reduced(special.to(torch.float32), "sum"))
    nans, _ = segments.spread(segments.reduced(is_nan.to(torch.float32), "sum"))
    factor = torch.where(nans > is_nan, float("nan"), torch.where(count > 1, 0.0, 1.0)).to(x.dtype)
    alone = spread * segments.spread(others)[0] * factor
    return torch.where(inside, torch.where(special, alone, segments.spread(grad * output)[0] / x), 0)


def register() -> None:
    register_operator(aten.segment_reduce.default, segment_reduce)
    register_operator(aten._segment_reduce_backward.default, segment_reduce_backward)
