"""Storages of webgpu tensors: making, resizing and reading them without a device allocator.

A storage is resized in place: its address stays, its allocation gets another buffer that starts with the old
one's bytes, and every tensor over it sees that, as with PyTorch's own devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_webgpu.engine.causes import RESIZED
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import Engine, engine
from torch_webgpu.engine.tensor import ADDRESS_BITS, LARGE_BYTES, Allocation
from torch_webgpu.runtime.runtime import Buffer, Copy

from . import torch_patches
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
    eng = engine()
    with Uninterrupted(), eng.lock:
        allocation = eng.mailbox.allocations[storage.data_ptr() >> ADDRESS_BITS]
        if storage.nbytes() != size_bytes and storage.data_ptr() != allocation.address:
            raise RuntimeError("Trying to resize storage that is not resizable: it is a slice of another one")
        if allocation.size_bytes != size_bytes:
            resize_allocation(eng, allocation, size_bytes)
            torch_patches.set_storage_nbytes(storage, size_bytes)
    return storage


def resize_allocation(eng: Engine, allocation: Allocation, size_bytes: int) -> None:
    """Gives an allocation a buffer of the new size. What is recorded over it means the old one, and runs first."""
    if size_bytes > LARGE_BYTES:
        eng.check_size(size_bytes, allocation.device)
    for lane in eng.lanes.touching(allocation.device, allocation.number):
        eng.flush_lane(lane, RESIZED)
    old, kept = allocation.buffer, min(allocation.size_bytes, size_bytes)
    device = eng.device(allocation.device)
    if old is not None and not 0 < size_bytes <= old.size_bytes:
        if kept and eng.capture is not None:
            eng.capture.refuse(allocation.device, "a storage with values in it cannot be resized")
        allocation.buffer = _moved(device, old, kept, size_bytes) if kept else None
        device.release(old)
    eng.live_bytes[allocation.device] += size_bytes - allocation.size_bytes
    allocation.size_bytes = size_bytes


def _moved(device: Any, old: Buffer, kept: int, size_bytes: int) -> Buffer:
    new = device.allocate(size_bytes)
    device.submit([Copy(old, 0, new, 0, -(-kept // 4) * 4)])
    return new


def ensure_size(storage: torch.UntypedStorage, size_bytes: int) -> None:
    """Grows a storage that is smaller than ``size_bytes``."""
    if storage.nbytes() < size_bytes:
        resize_storage(storage, size_bytes)


def register() -> None:
    torch_patches.replace_storage_methods(new_storage, resize_storage)
    torch_patches.move_storages()
    torch_patches.print_on_host()
    torch_patches.pass_through_data_parallel()
    torch_patches.name_dlpack_device()
    torch_patches.save_on_cpu_without_pinning()
