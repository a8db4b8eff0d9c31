"""Views and storage surgery: PyTorch's own device-agnostic kernels, and what they lack here.

The CPU kernels of view operators only compute sizes and strides and share the Storage; they never touch the data, so
they serve webgpu tensors as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..engine.record import engine
from ..layout import contiguous_strides
from .torch_abi import aten, impl, on_cpu_key

SHARED_WITH_CPU = (
    aten.as_strided.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
)


def _shared(overload: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return on_cpu_key(overload, *args, **kwargs)

    return kernel


def resize_(self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """As PyTorch's: keeps the storage when it is large enough, else moves to a larger one that starts with its data."""
    size = tuple(size)
    if self.shape == size and memory_format in (None, torch.preserve_format):
        return self
    strides = contiguous_strides(size)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    needed = self.storage_offset() + torch.Size(size).numel()
    held = self.untyped_storage().nbytes() // self.element_size()
    if needed > held:
        grown = engine().empty((needed,), self.dtype, self.device.index)
        if held:
            old = self.detach().as_strided((held,), (1,), 0)
            grown[:held].copy_(old)
        self.set_(grown.untyped_storage(), self.storage_offset(), size, strides)
        return self
    self.set_(self.untyped_storage(), self.storage_offset(), size, strides)
    return self


def set_storage(self: torch.Tensor, source: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()) -> torch.Tensor:
    on_cpu_key(aten.set_.source_Storage_storage_offset, self, source, offset, size, stride)
    return self


def set_source(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return set_storage(self, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


def register() -> None:
    for overload in SHARED_WITH_CPU:
        impl(overload, _shared(overload))
    impl(aten.resize_.default, resize_)
    impl(aten.set_.source_Storage_storage_offset, set_storage)
    impl(aten.set_.source_Tensor, set_source)
