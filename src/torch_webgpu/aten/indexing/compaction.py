"""Finding what is not zero: coordinates, selected elements, and how many there are, which the host waits for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.recorded_once import always
from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.results import name_of
from torch_webgpu.aten.dispatch.strict import Strict
from torch_webgpu.aten.dispatch.torch_abi import aten
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing import compact
from torch_webgpu.layout import Shape


def nonzero(self: torch.Tensor) -> torch.Tensor:
    """(n, self.dim()) coordinates, int64, in row-major order. Waits for the device, to learn ``n``.

    Each dimension's coordinates lie together in memory, as on the CPU.
    """
    return coordinates_of([self])[0]


def coordinates_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """:func:`nonzero` of each, after one wait."""
    counted = [starts_of(t) for t in tensors]
    results = []
    for t, (mask, starts), count in zip(tensors, counted, totals([starts for _, starts in counted]), strict=True):
        out = engine().empty((count, t.dim()), torch.int64, t.get_device(), (1, count))
        results.append(write_coordinates(mask, starts, t.shape, out))
    return results


def selected(name: str, self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements where ``mask``, of the same shape, is true. Waits for the device, to learn how many there are."""
    flat, starts = starts_of(mask)
    (count,) = totals([starts])
    return write_selected(name, self, flat, starts, count)


def write_selected(name: str, self: torch.Tensor, mask: torch.Tensor, starts: torch.Tensor, count: int) -> torch.Tensor:
    out = engine().empty((count,), self.dtype, self.device.index)
    if count:
        body = Extern(compact.lower_selected, (tuple(self.shape) or (1,), self.stride() or (1,)))
        record_kernel(name, [self, mask, starts], [out], body)
    return out


def run_begins(elements: torch.Tensor) -> torch.Tensor:
    """Which elements of a vector differ from the one before, bool; the first does."""
    begins = engine().empty(tuple(elements.shape), torch.bool, elements.get_device())
    record_kernel("run_begins", [elements], [begins], Extern(compact.lower_run_begins))
    return begins


def starts_of(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are not zero, in row-major order, and how many there are before each block of them, and in all,
    as int32.
    """
    mask = self.reshape(-1)
    mask = mask.contiguous() if mask.dtype == torch.bool else mask.ne(0)  # of an expanded number, it is a view
    starts = engine().empty((compact.blocks_of(mask.numel()) + 1,), torch.int32, mask.get_device())
    if mask.numel():
        record_kernel("count_nonzero", [mask], [starts], Extern(compact.lower_starts))
    return mask, starts


def totals(starts: Sequence[torch.Tensor]) -> list[int]:
    """The last of each, read with one wait; 0 where there is no block."""
    lasts = [s[-1] for s in starts if s.numel() > 1]
    counts = iter(torch.stack(lasts).tolist() if len(lasts) > 1 else [int(last) for last in lasts])
    return [next(counts) if s.numel() > 1 else 0 for s in starts]


def nonzero_static(self: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """:func:`nonzero` cut or filled up to ``size`` rows, without waiting."""
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, got {size}")
    out = self.new_full((size, self.dim()), fill_value, dtype=torch.int64)
    if self.numel() == 0:
        return out
    return write_coordinates(*starts_of(self), self.shape, out)


def write_coordinates(mask: torch.Tensor, starts: torch.Tensor, shape: Shape, out: torch.Tensor) -> torch.Tensor:
    if out.numel():
        record_kernel("nonzero", [mask, starts], [out], Extern(compact.lower_coordinates, (tuple(shape),)))
    return out


def not_long(result: torch.Tensor, out: torch.Tensor) -> Exception:
    return RuntimeError(
        f"nonzero: Expected out tensor to have scalar type Long but got scalar type{name_of(out.dtype)}"
    )


def register() -> None:
    register_operator(aten.nonzero.default, nonzero, strict=Strict(not_long), reads=always)
    register_operator(aten.nonzero_static.default, nonzero_static, strict=Strict(not_long))
