"""Between host and device: uploads, downloads, waiting, and the errors that kernels flagged meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from torch_webgpu.config import config
from torch_webgpu.ir.graph import operation_name
from torch_webgpu.layout import is_contiguous

from . import causes
from .flush import materialise
from .interrupt import Uninterrupted
from .record import engine
from .store import offset_in_allocation

if TYPE_CHECKING:
    from torch_webgpu.runtime.commands import Command
    from torch_webgpu.runtime.runtime import Buffer
    from torch_webgpu.runtime.transfer import Readback

    from .record import Engine

ERROR_WORDS = 8
"""Words of the error buffer in use: code, operation id, offending index (2 words), size (2 words)."""
INDEX_OUT_OF_RANGE = 1
HINT = "kernels run after the line that asked for them: with TORCH_WEBGPU_DEBUG=where that line raises this"
TOO_FEW = {"masked_scatter": "Number of elements of source < number of ones in mask"}
"""What an index out of range means where it counts elements that an argument should have had, in PyTorch's words."""


def host_bytes(t: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared; the caller keeps the tensor alive."""
    return memoryview((ctypes.c_char * (t.numel() * t.element_size())).from_address(t.data_ptr())).cast("B")


def upload(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Writes a contiguous CPU tensor into a webgpu tensor of its dtype and size, if it lies in whole words.

    Returns False, having done nothing, for a target that is not contiguous or shares a 32-bit word with its neighbours.
    """
    eng = engine()
    size = source.numel() * source.element_size()
    offset = offset_in_allocation(target)
    with Uninterrupted(), eng.lock:
        allocation = eng.allocation(target)
        to_end = offset + size == allocation.size_bytes
        if not is_contiguous(target.shape, target.stride()) or offset % 4 or (size % 4 and not to_end):
            return False
        data = host_bytes(source)
        eng.handovers += 1
        intake = eng.intake(allocation.device)
        if intake is not None and intake.write(allocation, offset, data, source.numel()):
            return True
        for lane in eng.lanes.touching(allocation.device, allocation.number):
            eng.flush_lane(lane, causes.WRITTEN)
        device = eng.device(allocation.device)
        if allocation.buffer is None:
            eng.make_room(allocation.device, size)
        buffer = materialise(device, allocation)
        whole = size - size % 4
        if whole:
            device.upload(buffer, offset, data[:whole])
        if size % 4:
            device.upload(buffer, offset + whole, bytes(data[whole:]).ljust(4, b"\0"))
        eng.backpressure.submitted(device, size)
    return True


def download(t: torch.Tensor, host: torch.Tensor) -> None:
    """Writes a webgpu tensor's elements, in row-major order, into a contiguous CPU tensor of its dtype and size.

    Waits; raises what went wrong so far.
    """
    eng = engine()
    with Uninterrupted(), eng.lock:
        read = _Read(eng, t, host)
        eng.flush_for(read.allocation, read, causes.why_read())
        eng.raise_pending()
        check_flags(read.device.index, read.finish())
        eng.readbacks.finish(read.device)
        eng.waited_for[read.device.index] = read.device.work


def download_later(t: torch.Tensor, host: torch.Tensor) -> None:
    """:func:`download` without waiting: the elements are there once the device, or a later event, was waited for."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        read = _LaterRead(eng, t, host)
        eng.readbacks.make_room(read.device, read.target.size)
        eng.flush_for(read.allocation, read, causes.why_read())
        eng.readbacks.begin(read.device, read.submitted_parts(), host)


class _Download:
    """The bytes of a tensor's elements on their way into ``host``: the trailing commands of a flush, if that goes well.

    They are read in row-major order from a whole word on, out of a copy if need be.
    """

    def __init__(self, eng: Engine, t: torch.Tensor, host: torch.Tensor) -> None:
        eng.refuse("a tensor's values cannot be read on the host", t.device.index)
        in_order = is_contiguous(t.shape, t.stride()) and offset_in_allocation(t) % 4 == 0
        self._source = t if in_order else eng.copy_of(t)  # lives until it was read
        self.allocation, self._offset = eng.allocation(self._source), offset_in_allocation(self._source)
        self.device = eng.device(self.allocation.device)
        self.target = np.frombuffer(host_bytes(host), np.uint8)
        self.submitted = False
        eng.handovers += 1


class _Read(_Download):
    """One that is waited for, and with it the error flags."""

    def __init__(self, eng: Engine, t: torch.Tensor, host: torch.Tensor) -> None:
        super().__init__(eng, t, host)
        self._flags = np.empty(ERROR_WORDS * 4, np.uint8)
        self._readback: Readback | None = None

    def commands(self) -> Sequence[Command]:
        """The copies, once the allocation has its buffer."""
        self._readback = self.device.begin_readback(self._requests(self.allocation.buffer), [self.target, self._flags])
        return () if self._readback is None else self._readback.copies

    def finish(self) -> np.ndarray:
        """Waits; the error flags' bytes."""
        if self._readback is not None and self.submitted:
            self.device.finish_readback(self._readback)
        else:
            buffer = materialise(self.device, self.allocation)
            self.device.download(self._requests(buffer), [self.target, self._flags])
        return self._flags

    def _requests(self, buffer: Buffer) -> list[tuple[Buffer, int, int]]:
        return [(buffer, self._offset, self.target.size), (self.device.error_buffer, 0, self._flags.size)]


class _LaterRead(_Download):
    """One that nobody waits for."""

    def __init__(self, eng: Engine, t: torch.Tensor, host: torch.Tensor) -> None:
        super().__init__(eng, t, host)
        self._parts: list[Readback] = []

    def commands(self) -> Sequence[Command]:
        """The copies, once the allocation has its buffer."""
        if not self._parts:
            buffer = materialise(self.device, self.allocation)
            self._parts = self.device.begin_readbacks((buffer, self._offset, self.target.size), self.target)
        return [copy for part in self._parts for copy in part.copies]

    def submitted_parts(self) -> list[Readback]:
        """Its parts, submitted by now."""
        if not self.submitted:
            self.device.submit(self.commands())
        return self._parts


def synchronize(index: int) -> None:
    """Waits for everything recorded for a device; raises what went wrong so far."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        eng.refuse("a device cannot be waited for", index)
        eng.flush(causes.SYNCHRONIZED, index)
        eng.raise_pending()
        device = eng.device(index)
        eng.readbacks.finish(device)
        if eng.waited_for.get(index) != device.work:
            (errors,) = device.download([(device.error_buffer, 0, ERROR_WORDS * 4)])
            check_flags(index, errors)
            eng.waited_for[index] = device.work


def check_flags(index: int, errors: np.ndarray) -> None:
    """Raises, and clears, what a kernel flagged."""
    words = errors.view(np.uint32)
    if words[0] == 0:
        return
    device = engine().device(index)
    device.upload(device.error_buffer, 0, bytes(ERROR_WORDS * 4))
    code, op = int(words[0]), operation_name(int(words[1]))
    value, size = (int(v) for v in words[2:6].view(np.int64))
    hint = "" if "where" in config().debug else f" ({HINT})"
    if op in TOO_FEW:
        raise RuntimeError(TOO_FEW[op] + hint)
    if code == INDEX_OUT_OF_RANGE:
        raise IndexError(f"{op}: index {value} is out of bounds for dimension with size {size}{hint}")
    raise RuntimeError(f"{op}: a kernel flagged error {code} (values {value}, {size}){hint}")
