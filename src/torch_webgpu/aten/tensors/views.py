"""Views and storage surgery: PyTorch's own device-agnostic kernels, and what they lack here.

The CPU kernels of view operators only compute sizes and strides and share the Storage; they never touch the data, so
they serve webgpu tensors as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_webgpu.aten.dispatch.register_operator import register_operator
from torch_webgpu.aten.dispatch.torch_abi import (
    aten,
    cpu_kernel,
    have_compatible_keys,
    impl,
    is_deterministic,
    on_cpu_key,
)
from torch_webgpu.engine.record import engine
from torch_webgpu.layout import contiguous_strides, extent

from .factories import unwritten
from .storage import ensure_size

SHARED_WITH_CPU = (
    aten.as_strided.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
    aten.is_set_to.default,
)
"""The CPU kernels themselves: see also patches.py."""


def resize_(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """As PyTorch's: keeps the data, grows the storage (under every view of it) when it is too small."""
    size = tuple(size)
    if self.shape == size and memory_format in (None, torch.preserve_format):
        return self
    if memory_format == torch.preserve_format:
        raise RuntimeError("Unsupported memory format Preserve")
    strides = contiguous_strides(size)
    if memory_format not in (None, torch.contiguous_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    storage = self.untyped_storage()
    before = storage.nbytes() // self.element_size()
    set_storage(self, storage, self.storage_offset(), size, strides)
    grown = storage.nbytes() // self.element_size() - before
    if grown > 0 and is_deterministic():
        unwritten(self.as_strided((grown,), (1,), before))
    return self


def set_storage(
    self: torch.Tensor, source: torch.UntypedStorage, offset: Any, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """``self`` becomes a view of ``source``, which grows if it is too small for it."""
    size = tuple(size)
    stride = tuple(stride) or contiguous_strides(size)
    if source.device == self.device:
        check_start(source, self.element_size())
        # PyTorch's kernel would grow it too, and knows no device allocator here.
        ensure_size(source, (offset + extent(size, stride)) * self.element_size() if 0 not in size else 0)
    return on_cpu_key(SET_STORAGE, self, source, offset, size, stride)


def check_start(storage: torch.UntypedStorage, itemsize: int) -> None:
    """RuntimeError for a slice of a storage that starts within an element: kernels address whole ones."""
    beyond = storage.data_ptr() % itemsize
    if beyond:
        raise RuntimeError(
            f"this storage is a slice of another one, {beyond} bytes after a multiple of {itemsize}: a webgpu tensor "
            "of this dtype cannot lie in it; copy the slice"
        )


SET_STORAGE = aten.set_.source_Storage_storage_offset


def set_whole_storage(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    return set_storage(self, source, 0, (source.nbytes() // self.element_size(),))


def set_source(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return set_storage(self, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


def set_nothing(self: torch.Tensor) -> torch.Tensor:
    return set_source(self, engine().empty((0,), self.dtype, self.device.index))


def narrow_copy(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    if dim >= self.dim():
        raise RuntimeError(f"narrow_copy: dimension {dim} of a tensor of {self.dim()} dimensions")
    return self.narrow(dim, start, length).clone(memory_format=torch.contiguous_format)


def lazy_clone(self: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, made at once: copy-on-write storages are C++'s own memory."""
    size, stride = self.shape, self.stride()
    whole = self.as_strided((extent(size, stride),), (1,), self.storage_offset()).clone()
    return whole.as_strided(size, stride, 0)


def register() -> None:
    for overload in SHARED_WITH_CPU:
        impl(overload, cpu_kernel(overload))
    register_operator(aten.narrow_copy.default, narrow_copy)
    # What `t.data = other` and `Module.to` ask, and what answers like CPU and CUDA among themselves.
    impl(aten._has_compatible_shallow_copy_type.default, have_compatible_keys)
    impl(aten._lazy_clone.default, lazy_clone)
    impl(aten.resize_.default, resize_)
    impl(aten.set_.default, set_nothing)
    impl(aten.set_.source_Storage, set_whole_storage)
    impl(aten.set_.source_Storage_storage_offset, set_storage)
    impl(aten.set_.source_Tensor, set_source)
