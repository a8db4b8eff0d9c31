"""Storages of another size: the address stays, what lies at it moves to another buffer."""

from __future__ import annotations

from torch_webgpu.plan import whole_words
from torch_webgpu.runtime.commands import CopyBuffer

from .flush_reason import RESIZED
from .interrupt import Uninterrupted
from .record import engine
from .tensor import ADDRESS_BITS, LARGE_BYTES


def resize(address: int, size_bytes: int) -> bool:
    """Makes the storage at an address ``size_bytes`` large; the bytes that fit are kept. False if it is that already.

    Raises OutOfMemoryError for what no buffer can hold, RuntimeError for a slice of another storage, and where a graph
    is captured that would lose values.
    """
    eng = engine()
    with Uninterrupted(), eng.lock:
        allocation = eng.mailbox.allocations[address >> ADDRESS_BITS]
        if allocation.size_bytes == size_bytes:
            return False
        if allocation.address != address:
            raise RuntimeError("Trying to resize storage that is not resizable: it is a slice of another one")
        if size_bytes > LARGE_BYTES:
            eng.check_size(size_bytes, allocation.device)
        # What is recorded over it means the storage as it was.
        for lane in eng.lanes.touching(allocation.device, allocation.number):
            eng.flush_lane(lane, RESIZED)
        eng.handovers += 1
        eng.relocations += 1
        old, kept = allocation.buffer, min(allocation.size_bytes, size_bytes)
        device = eng.device(allocation.device)
        if old is not None and not 0 < size_bytes <= old.size_bytes:
            new = None
            if kept:
                eng.refuse("a storage with values in it cannot be resized", allocation.device)
                new = device.allocate(size_bytes)
                device.submit([CopyBuffer(old, 0, new, 0, whole_words(kept))])
            allocation.buffer = new
            device.release(old)
        eng.live_bytes[allocation.device] += size_bytes - allocation.size_bytes
        allocation.size_bytes = size_bytes
        return True
