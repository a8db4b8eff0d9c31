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

PIECE_BYTES, PIECE_ELEMENTS = 32 << 20, 64
"""How much of a larger tensor goes through one block, and what its number of elements is a multiple of."""


def upload_apart(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Writes a contiguous CPU tensor into a webgpu tensor of its dtype and shape, from any thread.

    False for what is small, not contiguous or not of whole words, and where a capture is underway or there is no
    memory: whoever called writes it in another way then.
    """
    size = source.nbytes
    is_plain = is_contiguous(target.shape, target.stride()) and not (target.is_conj() or target.is_neg())
    if not (is_plain and size >= SMALLEST_BYTES and size % 4 == 0):
        return False
    if size <= LARGEST_BYTES:
        return _upload(target, source)
    pieces = -(-size // PIECE_BYTES)
    elements = -(-source.numel() // (pieces * PIECE_ELEMENTS)) * PIECE_ELEMENTS
    of_both = zip(target.view(-1).split(elements), source.view(-1).split(elements), strict=True)
    return all(_upload(of_target, of_source) for of_target, of_source in of_both)


def _upload(target: torch.Tensor, source: torch.Tensor) -> bool:
    """:func:`upload_apart` through one block."""
    eng, size = engine(), source.nbytes
    block = None
    try:
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
    except BaseException:  # a signal's handler may raise here
        if block is not None:
            with Uninterrupted(), eng.lock:
                uploads.drop(block)
        raise
    with Uninterrupted(), eng.lock:
        if device.opened is not opened:
            uploads.drop(block)
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
