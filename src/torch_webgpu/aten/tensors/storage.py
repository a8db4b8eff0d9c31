"""Storages of webgpu tensors: making, resizing and reading them without a device allocator.

A storage is resized in place: its address stays, its allocation gets another buffer that starts with the old
one's bytes, and every tensor over it sees that, as with PyTorch's own devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

from torch_webgpu.aten.dispatch import torch_patches
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.resize import resize

from .factories import device_index


def new_storage(device: torch.device, size: int | Sequence[int] = 0) -> torch.UntypedStorage:
    """``torch.UntypedStorage(size, device=…)``: ``size`` bytes of undefined content, or the given bytes."""
    index = device_index(device)
    if isinstance(size, int):
        return engine().empty((size,), torch.uint8, index).untyped_storage()
    return torch.tensor(list(size), dtype=torch.uint8, device=torch.device("webgpu", index)).untyped_storage()


def resize_storage(storage: torch.UntypedStorage, size_bytes: int) -> torch.UntypedStorage:
    """Makes a storage ``size_bytes`` large; the bytes that fit are kept, and size 0 gives its memory back."""
    if size_bytes < 0:
        raise RuntimeError(f"storage sizes are not negative, got {size_bytes}")
    with Uninterrupted():
        if storage.nbytes() != size_bytes and resize(storage.data_ptr(), size_bytes):
            torch_patches.set_storage_nbytes(storage, size_bytes)
    return storage


def ensure_size(storage: torch.UntypedStorage, size_bytes: int) -> None:
    """Grows a storage that is smaller than ``size_bytes``."""
    if storage.nbytes() < size_bytes:
        resize_storage(storage, size_bytes)


def register() -> None:
    """Gives storages ``webgpu()`` and ``is_webgpu``."""
    generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )
