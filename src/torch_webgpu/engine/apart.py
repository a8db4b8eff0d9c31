"""Uploads whose bytes are copied without the engine's lock: other threads record, flush and read back meanwhile."""

from __future__ import annotations

import numpy as np
import torch

from torch_webgpu.errors import DeviceLostError
from torch_webgpu.layout import is_contiguous
from torch_webgpu.runtime.commands import CopyBuffer
from torch_webgpu.runtime.upload_memory import LARGEST_BYTES, SMALLEST_BYTES

from . import flush_reason
from .flush import materialise
from .interrupt import Uninterrupted
from .record import engine
from .sync import host_bytes


def upload_apart(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Writes a contiguous CPU tensor into a webgpu tensor of its dtype and shape, from any thread.

    False, having done nothing, for what is small or very large, not contiguous or not of whole words, and where a
    capture is underway or there is no memory.
    """
    eng, size = engine(), source.nbytes
    is_plain = is_contiguous(target.shape, target.stride()) and not (target.is_conj() or target.is_neg())
    if not (is_plain and SMALLEST_BYTES <= size <= LARGEST_BYTES and size % 4 == 0):
        return False
    with Uninterrupted(), eng.lock:
        allocation, offset = eng.locate(target)
        if offset % 4 or eng.intake(allocation.device) is not None:
            return False
        device = eng.device(allocation.device)
        opened = device.opened
        device.raise_errors(opened)
        uploads = opened.transfer.uploads
        block = uploads.take(size)
        if block is None:
            return False
    np.copyto(np.frombuffer(block.memory, np.uint8, size), np.frombuffer(host_bytes(source), np.uint8))
    with Uninterrupted(), eng.lock:
        if device.opened is not opened:
            raise DeviceLostError(f"webgpu:{device.index} was reset, and what was to be written is lost with it")
        uploads.close_mapping(block)
        try:
            allocation, offset = eng.locate(target)
            eng.handovers += 1
            for lane in eng.lanes.touching(allocation.device, allocation.number):
                eng.flush_lane(lane, flush_reason.WRITTEN)
            if allocation.buffer is None:
                eng.make_room(allocation.device, size)
            device.submit([CopyBuffer(block.buffer, 0, materialise(device, allocation), offset, size)])
        finally:
            if device.is_open and device.opened is opened:
                uploads.give(block)
        eng.backpressure.submitted(device, size)
    return True
