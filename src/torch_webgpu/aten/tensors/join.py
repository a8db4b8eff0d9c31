"""Concatenation and what is made of slices: cat, roll, flip, repetition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.register_pointwise import check_devices
from torch_webgpu.aten.dispatch.strict import Strict, cannot_cast
from torch_webgpu.aten.dispatch.torch_abi import aten, outputs_of
from torch_webgpu.aten.foreach.foreach_reductions import collect
from torch_webgpu.aten.indexing.indexing import read, wrap_dim


def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Each input is copied, and converted, into its slice of the result; empty 1-D inputs count for nothing."""
    check_devices(tensors)
    check_ranks(tensors)
    (out,) = outputs_of(aten.cat.default, tensors, dim)
    kept = [t for t in tensors if t.shape != (0,)]
    if not kept:
        return out
    dim = wrap_dim(dim, out.dim())
    start = 0
    for t in kept:
        out.narrow(dim, start, t.shape[dim]).copy_(t)
        start += t.shape[dim]
    return out


def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    check_devices(tensors)
    for position, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(t.shape)} at entry {position}"
            )
    if tensors and not tensors[0].dim() and (collected := collect(tensors)) is not None:
        wrap_dim(dim, 1)
        return collected
    (out,) = outputs_of(aten.stack.default, tensors, dim)
    for t, part in zip(tensors, out.unbind(wrap_dim(dim, out.dim())), strict=True):
        part.copy_(t)
    return out


def check_ranks(tensors: Sequence[torch.Tensor]) -> None:
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    for position, t in enumerate(tensors):
        if t.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {position}) cannot be concatenated")
    first, *others = [t.dim() for t in tensors if t.shape != (0,)] or [1]
    for rank in others:
        if rank != first:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first} and {rank}")


def roll(self: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """The result in 2^k slices for k rolled dimensions, each a copy."""
    (out,) = outputs_of(aten.roll.default, self, shifts, dims)
    if out.numel() == 0:
        return out
    if not dims:
        flat = self.reshape(-1)
        return out.copy_(roll(flat, shifts, (0,)).view(self.shape))
    moved: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        d = wrap_dim(dim, self.dim())
        moved[d] = (moved.get(d, 0) + shift) % self.shape[d]
    # Along a dimension of size n rolled by s: result[s:] = self[:n - s] and result[:s] = self[n - s:].
    parts = [[(d, s, 0, self.shape[d] - s)] + ([(d, 0, self.shape[d] - s, s)] if s else []) for d, s in moved.items()]
    for pieces in product(*parts):
        target, source = out, self
        for d, to, start, length in pieces:
            target, source = target.narrow(d, to, length), source.narrow(d, start, length)
        target.copy_(source)
    return out


def flip(self: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    (out,) = outputs_of(aten.flip.default, self, dims)
    flipped = {wrap_dim(d, self.dim()) for d in dims} if self.dim() else set()
    strides = tuple(-s if d in flipped else s for d, s in enumerate(self.stride()))
    base = sum((self.shape[d] - 1) * self.stride(d) for d in flipped)
    return read("flip", self, strides, [], out, base)


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """``i`` repeated ``repeats[i]`` times, for each ``i``. Waits for the device unless ``output_size`` is given."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    ends = torch.cumsum(repeats, 0)
    if output_size is None:
        least, output_size = torch.stack([repeats.min().to(ends.dtype), ends[-1]]).tolist()
        if least < 0:
            raise RuntimeError("repeats can not be negative")
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


def counts_repeats(_repeats: torch.Tensor, *, output_size: int | None = None) -> bool:
    """Whether the size of the result has to be read."""
    return output_size is None


def register() -> None:
    register_operator(aten.cat.default, cat, strict=Strict(cannot_cast("cat"), casts=True))
    register_operator(aten.stack.default, stack, strict=Strict(cannot_cast("cat"), casts=True))
    for overload, fn in (
        (aten.roll.default, roll),
        (aten.flip.default, flip),
    ):
        register_operator(overload, fn)
    register_operator(aten.repeat_interleave.Tensor, repeat_interleave, reads=counts_repeats)
