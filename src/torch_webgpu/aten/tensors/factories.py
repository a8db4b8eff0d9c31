"""Tensors from nothing: ``empty`` and what fills it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.recorded_once import record_once
from torch_webgpu.aten.dispatch.register_pointwise import opmath
from torch_webgpu.aten.dispatch.scalars import cast_scalar
from torch_webgpu.aten.dispatch.torch_abi import aten, fills_what_is_unwritten, impl, is_deterministic
from torch_webgpu.dtypes import BY_NAME, BY_TORCH
from torch_webgpu.engine.current import current_device
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops
from torch_webgpu.wgsl.expr import split_scalar


def device_index(device: Any) -> int:
    """The adapter a device argument names; the current one for a bare "webgpu"."""
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def empty_memory_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    check(layout, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    strides = None
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    check_size(size)
    return unwritten(engine().empty(size, dtype, device_index(device), strides))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    check(layout, pin_memory)
    check_size(size)
    if len(size) != len(stride):
        raise RuntimeError(
            f"dimensionality of sizes ({len(size)}) must match dimensionality of strides ({len(stride)})"
        )
    return unwritten(engine().empty(size, dtype or torch.get_default_dtype(), device_index(device), stride))


def unwritten(t: torch.Tensor) -> torch.Tensor:
    """``t``, which nothing was written to: filled as PyTorch fills it in deterministic mode, so that mistakes show."""
    if is_deterministic() and fills_what_is_unwritten():
        if t.is_floating_point() or t.is_complex():
            return t.fill_(float("nan"))
        return t.fill_(True if t.dtype == torch.bool else torch.iinfo(t.dtype).max)
    return t


def check_size(size: Sequence[int]) -> None:
    for n in size:
        if n < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {n}: {list(size)}")


def check(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"webgpu tensors are strided; {layout} has no kernel here")
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


LOWEST, HIGHEST = -128, 127
"""Between these, numbers fit every dtype (unsigned ones wrap integers, and refuse other negative numbers)."""
SINGLE = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""What is filled with a float32 number."""


def filling(args: Sequence[Any]) -> tuple[int | float, ...]:
    """The parameters of what fills ``self`` with ``value``, the two ``args``. Raises for a number that does not fit."""
    value = args[1]
    is_float = value.__class__ is float
    small = (is_float or value.__class__ is int) and LOWEST <= value <= HIGHEST
    dtype = args[0].dtype
    if small and dtype in SINGLE:
        return (float(value),)
    if is_float or not small:
        torch.full((2,), value, dtype=dtype, device="cpu")  # raises
        return filling_with(dtype, value)
    return filling_with_small(dtype, value)


def filling_with(dtype: torch.dtype, value: Any) -> tuple[int | float, ...]:
    """The parameters of what fills tensors of this dtype with a number that fits."""
    name = opmath(dtype)
    return split_scalar(cast_scalar(value, name), BY_NAME[name].kind)


filling_with_small = cache(filling_with)
"""For integers between ``LOWEST`` and ``HIGHEST``, such as counters are set to: a look-up."""


def value_of(dtype: str) -> Expr:
    return ops.param(0, dtype)


def fill(self: torch.Tensor, value: Any) -> torch.Tensor:
    if self.dtype not in BY_TORCH:
        return self.copy_(torch.full((), value, dtype=self.dtype, device="cpu"))
    dtype = opmath(self.dtype)
    filling((self, value))
    if self.numel():  # programs clear empty tensors all the time
        scalars = [(BY_NAME[dtype].kind, cast_scalar(value, dtype))]
        record_pointwise("fill", [], [self], value_of, (dtype,), scalars)
    return self


fill_scalar = record_once(fill, filling)


def fill_tensor(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if value.dim():
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.dim()} dimensions."
        )
    return self.copy_(value)


def zero_(self: torch.Tensor) -> torch.Tensor:
    return fill_scalar(self, 0) if self.numel() else self  # which has no recipe where nothing is recorded


def register() -> None:
    impl(aten.empty.memory_format, empty_memory_format)
    impl(aten.empty_strided.default, empty_strided)
    impl(aten.fill_.Scalar, fill_scalar)
    impl(aten.fill_.Tensor, fill_tensor)
    impl(aten.zero_.default, zero_)
