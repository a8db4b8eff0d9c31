"""Between host and device: uploads, downloads, waiting, and the errors that kernels flagged meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

import torch

from torch_webgpu.config import config
from torch_webgpu.ir.graph import operation_name
from torch_webgpu.layout import is_contiguous

from . import causes
from .flush import materialise
from .interrupt import Uninterrupted
from .record import engine

if TYPE_CHECKING:
    from torch_webgpu.runtime.commands import Command
    from torch_webgpu.runtime.runtime import Buffer, Device
    from torch_webgpu.runtime.transfer import Readback, Request

    from .record import Engine

ERROR_BYTES = 32
"""Of the error buffer that are in use."""
_FLAGS = Struct("<IIqq")
"""Code, operation id, offending index, size."""
INDEX_OUT_OF_RANGE = 1
HINT = "kernels run after the line that asked for them: with TORCH_WEBGPU_DEBUG=where that line raises this"
TOO_FEW = {"masked_scatter": "Number of elements of source < number of ones in mask"}
"""What an index out of range means where it counts elements that an argument should have had, in PyTorch's words."""


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_WRITABLE = 0x200  # PyBUF_WRITE


def host_bytes(t: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared; the caller keeps the tensor alive."""
    return _view(t.data_ptr(), t.nbytes, _WRITABLE)


def upload(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Writes a contiguous CPU tensor into a webgpu tensor of its dtype and size, if it lies in whole words.

    Returns False, having done nothing, for a target that is not contiguous or shares a 32-bit word with its neighbours.
    """
    eng = engine()
    size = source.numel() * source.element_size()
    with Uninterrupted(), eng.lock:
        allocation, offset = eng.place(target)
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


def download(t: torch.Tensor, host: memoryview) -> None:
    """Writes a webgpu tensor's elements, in row-major order, into so many bytes of the host's memory.

    Waits; raises what went wrong so far.
    """
    eng = engine()
    with Uninterrupted(), eng.lock:
        source = _Source(eng, t, host)
        read = _Read(source.device, source)
        eng.flush_for(source.allocation, read, causes.why_read())
        eng.raise_pending()
        read.finish()
        eng.waited(source.device)


def download_later(t: torch.Tensor, host: torch.Tensor) -> None:
    """:func:`download` without waiting: the elements are there once the device, or a later event, was waited for."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        source = _Source(eng, t, host_bytes(host))
        read = _LaterRead(source)
        eng.readbacks.make_room(source.device, len(source.target))
        eng.flush_for(source.allocation, read, causes.why_read())
        eng.readbacks.begin(source.device, read.submitted_parts(), host)


class _Source:
    """Where the bytes of a tensor's elements lie, in row-major order from a whole word on, for ``target``.

    That is in a copy if need be, which lives as long as this object.
    """

    __slots__ = ("_tensor", "allocation", "device", "offset", "target")

    def __init__(self, eng: Engine, t: torch.Tensor, target: memoryview) -> None:
        if eng.capture is not None:
            eng.refuse("a tensor's values cannot be read on the host", t.device.index)
        allocation, offset = eng.place(t)
        if offset % 4 or not t.is_contiguous():
            t = eng.copy_of(t)
            allocation, offset = eng.place(t)
        self._tensor, self.allocation, self.offset, self.target = t, allocation, offset, target
        self.device = eng.device(allocation.device)
        eng.handovers += 1

    def materialise(self) -> Buffer:
        """Its memory, taken if nothing lay there yet."""
        return materialise(self.device, self.allocation)


class _Read:
    """What is waited for, as the trailing commands of a flush, if that goes well: a tensor and, if kernels may have
    raised any, the error flags; without a tensor only those.
    """

    __slots__ = ("_device", "_flags", "_readback", "_source", "submitted")

    def __init__(self, device: Device, source: _Source | None = None) -> None:
        self._device, self._source = device, source
        self._flags: bytearray | None = None
        self._readback: Readback | None = None
        self.submitted = False

    def commands(self) -> Sequence[Command]:
        """The copies, if the tensor has its memory by now."""
        source = self._source
        buffer = None if source is None else source.allocation.buffer
        if source is None or buffer is not None:
            self._readback = self._device.begin_readback(*self._requests(buffer))
        return () if self._readback is None else self._readback.copies

    def finish(self) -> None:
        """Waits; raises what kernels flagged."""
        device = self._device
        if self._readback is not None and self.submitted:
            device.finish_readback(self._readback)
        else:
            buffer = None if self._source is None else self._source.materialise()
            device.download(*self._requests(buffer))
        if self._flags is not None:
            device.may_have_flags = False
            check_flags(device, self._flags)

    def _requests(self, buffer: Buffer | None) -> tuple[list[Request], list[memoryview]]:
        requests: list[Request] = []
        targets: list[memoryview] = []
        source = self._source
        if source is not None and buffer is not None:
            requests.append((buffer, source.offset, len(source.target)))
            targets.append(source.target)
        if source is None or self._device.may_have_flags:
            self._flags = bytearray(ERROR_BYTES)
            requests.append((self._device.error_buffer, 0, ERROR_BYTES))
            targets.append(memoryview(self._flags))
        return requests, targets


class _LaterRead:
    """A tensor that nobody waits for, as the trailing commands of a flush, if that goes well."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._parts: list[Readback] = []
        self.submitted = False

    def commands(self) -> Sequence[Command]:
        """The copies, once the allocation has its buffer."""
        if not self._parts:
            source = self._source
            request = source.materialise(), source.offset, len(source.target)
            self._parts = source.device.begin_readbacks(request, source.target)
        return [copy for part in self._parts for copy in part.copies]

    def submitted_parts(self) -> list[Readback]:
        """Its parts, submitted by now."""
        if not self.submitted:
            self._source.device.submit(self.commands())
        return self._parts


def synchronize(index: int) -> None:
    """Waits for everything recorded for a device; raises what went wrong so far."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        eng.refuse("a device cannot be waited for", index)
        device = eng.device(index)
        read = _Read(device)
        eng.flush(causes.SYNCHRONIZED, index, read)
        eng.raise_pending()
        if read.submitted or eng.has_work(device):
            read.finish()
            eng.waited(device)
        else:
            eng.readbacks.finish(device)


def check_flags(device: Device, flags: bytearray) -> None:
    """Raises, and clears, what a kernel flagged."""
    code, number, value, size = _FLAGS.unpack_from(flags)
    if not code:
        return
    device.upload(device.error_buffer, 0, bytes(ERROR_BYTES))
    op = operation_name(number)
    hint = "" if "where" in config().debug else f" ({HINT})"
    if op in TOO_FEW:
        raise RuntimeError(TOO_FEW[op] + hint)
    if code == INDEX_OUT_OF_RANGE:
        raise IndexError(f"{op}: index {value} is out of bounds for dimension with size {size}{hint}")
    raise RuntimeError(f"{op}: a kernel flagged error {code} (values {value}, {size}){hint}")
