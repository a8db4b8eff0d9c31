"""Between host and device: uploads, downloads, waiting, and the errors that kernels flagged meanwhile."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import torch

from torch_webgpu.config import config
from torch_webgpu.errors import DeviceLostError, OutOfRangeError
from torch_webgpu.ir.operation import operation_name
from torch_webgpu.layout import is_contiguous

from . import flush_reason
from .flush import materialise
from .interrupt import Uninterrupted
from .record import engine
from .store import address_of
from .tensor import ADDRESS_BITS, FIRST_BYTE, OFFSET_MASK

if TYPE_CHECKING:
    from torch_webgpu.runtime.commands import Command
    from torch_webgpu.runtime.runtime import Device
    from torch_webgpu.runtime.transfer import Readback, Request

    from .record import Engine
    from .tensor import Allocation

ERROR_BYTES = 32
"""Of the error buffer that are in use."""
SPIN_S, LONGEST_PAUSE_S = 1e-4, 1e-3
"""How long a wait looks time and again at first, and the longest pause between two looks after that."""
WAITED_PART = 16
"""A pause is this part of what was waited so far: that much of a wait may be for nothing."""
_FLAGS = Struct("<IIqq")
"""Code, operation id, offending index, size."""
INDEX_OUT_OF_RANGE = 1
HINT = "kernels run after the line that asked for them: with TORCH_WEBGPU_DEBUG=where that line raises this"


class Words(NamedTuple):
    """PyTorch's error for an index out of range, in which ``{value}`` is the index, and ``{size}`` how many there are.

    ``of_negative``, if not None: that of a negative one.
    """

    error: type[Exception]
    words: str
    of_negative: str | None = None


ONE_HOT = Words(RuntimeError, "Class values must be smaller than num_classes.", "Class values must be non-negative.")
_TARGET = Words(IndexError, "Target {value} is out of bounds.")
_TAKEN = Words(IndexError, "out of range: tried to access index {value} on a tensor of {size} elements.")
_UNPOOLED = Words(RuntimeError, "Found an invalid max index: {value}")
_NOT_FINITE = "The algorithm failed to converge because the input matrix contained non-finite values."
_NOT_CONVERGED = (
    "(Batch element {value}): The algorithm failed to converge because the input matrix is ill-conditioned or has too "
    "many repeated eigenvalues."
)
_LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
PYTORCHS_WORDS = {
    "_linalg_eigvals": Words(_LinAlgError, f"torch.linalg.eigvals: {_NOT_CONVERGED}"),
    "linalg_eig": Words(
        _LinAlgError,
        f"torch.linalg.eig: {_NOT_CONVERGED}",
        of_negative="torch.linalg.eig: input tensor should not contain infs or NaNs.",
    ),
    "_linalg_svd": Words(
        _LinAlgError,
        f"linalg.svd: (Batch element {{value}}): {_NOT_FINITE}",
        of_negative=f"linalg.svd: {_NOT_FINITE}",
    ),
    "masked_scatter": Words(RuntimeError, "Number of elements of source < number of ones in mask"),
    "one_hot": ONE_HOT,
    "nll_loss_forward": _TARGET,
    "nll_loss2d_forward": _TARGET,
    "multi_margin_loss": Words(RuntimeError, "target out of range"),
    "multilabel_margin_loss": Words(RuntimeError, "argument #2 'target' is out of range"),
    "take": _TAKEN,
    "put": _TAKEN,
    "multinomial": Words(
        RuntimeError,
        "invalid multinomial distribution (sum of probabilities <= 0)",
        of_negative="probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "segment_reduce": Words(
        RuntimeError,
        "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe.",
        of_negative="lengths contains negative value!",
    ),
    "max_unpool2d": _UNPOOLED,
    "max_unpool3d": _UNPOOLED,
}
"""Operators whose indices are something of its own to who calls them: classes, targets, counts, elements."""
RUNTIME_ERRORS = frozenset({"gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_select"})
"""Operators whose kernels on the CPU raise RuntimeError for an index out of range."""


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
        allocation, offset = eng.locate(target)
        to_end = offset + size == allocation.size_bytes
        if not is_contiguous(target.shape, target.stride()) or offset % 4 or (size % 4 and not to_end):
            return False
        data = host_bytes(source)
        eng.handovers += 1
        intake = eng.intake(allocation.device)
        if intake is not None and intake.write(allocation, offset, data, source.numel()):
            return True
        for lane in eng.lanes.touching(allocation.device, allocation.number):
            eng.flush_lane(lane, flush_reason.WRITTEN)
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
        t, allocation, offset = _source(eng, t)
        device = eng.device(allocation.device)
        read = _Read(device, allocation, offset, host)
        eng.flush_for(allocation, read, flush_reason.why_read())
        if eng.error is not None:
            eng.raise_pending()
        read.finish()
        eng.waited(device)


def download_later(t: torch.Tensor, host: torch.Tensor) -> None:
    """:func:`download` without waiting: the elements are there once the device, or a later event, was waited for."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        t, allocation, offset = _source(eng, t)
        device, target = eng.device(allocation.device), host_bytes(host)
        read = _LaterRead(device, allocation, offset, target)
        eng.readbacks.make_room(device, len(target))
        eng.flush_for(allocation, read, flush_reason.why_read())
        eng.readbacks.begin(device, read.submitted_parts(), host)


def pause(begin_s: float) -> None:
    """Between two looks at something that is waited for since ``begin_s``, by ``time.perf_counter``."""
    waited_s = time.perf_counter() - begin_s
    time.sleep(0 if waited_s < SPIN_S else min(waited_s / WAITED_PART, LONGEST_PAUSE_S))


class Download:
    """:func:`download` whose wait any thread may do, without the engine's lock: others record and flush meanwhile.

    ``host``: a contiguous CPU tensor of as many bytes, which nobody else uses until the end of :meth:`wait`.
    """

    def __init__(self, t: torch.Tensor, host: torch.Tensor) -> None:
        eng = engine()
        with Uninterrupted(), eng.lock:
            t, allocation, offset = _source(eng, t)
            device = self._device = eng.device(allocation.device)
            read = _LaterRead(device, allocation, offset, host_bytes(host))
            eng.flush_for(allocation, read, flush_reason.why_read())
            self._parts, self._host = read.submitted_parts(), host
            self._opened, self._reached = device.opened, device.mark()

    def is_done(self) -> bool:
        """Whether the device has done its part, so that :meth:`wait` would not wait for it."""
        with Uninterrupted(), engine().lock:
            return self._reached()

    def wait(self) -> None:
        """Waits until the bytes are in the host's memory. Raises DeviceLostError where they never will be."""
        begin_s = time.perf_counter()
        while not self.is_done():
            pause(begin_s)
        lock, device, opened = engine().lock, self._device, self._opened
        for part in self._parts:
            with Uninterrupted(), lock:
                if device.opened is not opened:
                    raise DeviceLostError(f"webgpu:{device.index} was reset, and what was to be read is lost with it")
                mapped = opened.transfer.map(part)
                device.raise_errors(opened)
            part.take(mapped)
            with Uninterrupted(), lock:
                if device.opened is opened:
                    opened.transfer.unmap(part)
        self._parts = []


def _source(eng: Engine, t: torch.Tensor) -> tuple[torch.Tensor, Allocation, int]:
    """A tensor whose elements lie in row-major order from a whole word on, to be kept meanwhile; where that is.

    It is ``t`` or a copy of it.
    """
    if eng.capture is not None:
        eng.refuse("a tensor's values cannot be read on the host", t.device.index)
    eng.handovers += 1
    address = t.data_ptr() or address_of(t)
    if address & 3 or not t.is_contiguous():
        t = eng.copy_of(t)
        address = t.data_ptr() or address_of(t)
    return t, eng.mailbox.allocations[address >> ADDRESS_BITS], (address & OFFSET_MASK) - FIRST_BYTE


class _Read:
    """What is waited for, as the trailing commands of a flush, if that goes well: the bytes of an allocation from
    ``offset`` on that fill a target, and the error flags, if kernels may have raised any; without an allocation only
    those.
    """

    __slots__ = ("_allocation", "_device", "_flags", "_offset", "_readback", "_target", "submitted")

    def __init__(
        self, device: Device, allocation: Allocation | None = None, offset: int = 0, target: memoryview | None = None
    ) -> None:
        self._device, self._allocation, self._offset, self._target = device, allocation, offset, target
        self._flags: bytearray | None = None
        self._readback: Readback | None = None
        self.submitted = False

    def commands(self) -> Sequence[Command]:
        """The copies, if the allocation has its memory by now."""
        if self._allocation is not None and self._allocation.buffer is None:
            return ()
        readback = self._readback = self._device.opened.transfer.begin(*self._requests())
        return () if readback is None else readback.copies

    def finish(self) -> None:
        """Waits; raises what kernels flagged."""
        device = self._device
        if self.submitted and self._readback is not None:
            device.finish_readback(self._readback)
        else:
            if self._allocation is not None:
                materialise(device, self._allocation)
            device.download(*self._requests())
        if self._flags is not None:
            device.may_have_flags = False
            check_flags(device, self._flags)

    def _requests(self) -> tuple[list[Request], list[memoryview]]:
        allocation, target, device = self._allocation, self._target, self._device
        requests: list[Request] = []
        targets: list[memoryview] = []
        if allocation is not None and target is not None:
            requests, targets = [(allocation.buffer, self._offset, len(target))], [target]
        if allocation is None or device.may_have_flags:
            self._flags = bytearray(ERROR_BYTES)
            requests.append((device.error_buffer, 0, ERROR_BYTES))
            targets.append(memoryview(self._flags))
        return requests, targets


class _LaterRead:
    """The same of what nobody waits for, but for the error flags."""

    def __init__(self, device: Device, allocation: Allocation, offset: int, target: memoryview) -> None:
        self._device, self._allocation, self._offset, self._target = device, allocation, offset, target
        self._parts: list[Readback] = []
        self.submitted = False

    def commands(self) -> Sequence[Command]:
        """The copies, once the allocation has its buffer."""
        if not self._parts:
            request = materialise(self._device, self._allocation), self._offset, len(self._target)
            self._parts = self._device.begin_readbacks(request, self._target)
        return [copy for part in self._parts for copy in part.copies]

    def submitted_parts(self) -> list[Readback]:
        """Its parts, submitted by now."""
        if not self.submitted:
            self._device.submit(self.commands())
        return self._parts


def synchronize(index: int) -> None:
    """Waits for everything recorded for a device; raises what went wrong so far."""
    eng = engine()
    with Uninterrupted(), eng.lock:
        if eng.capture is not None:
            eng.refuse("a device cannot be waited for", index)
        device = eng.device(index)
        read = _Read(device)
        eng.flush(flush_reason.SYNCHRONIZED, index, read)
        if eng.error is not None:
            eng.raise_pending()
        if read.submitted or eng.has_work(device):
            read.finish()
            eng.waited(device)
        else:
            eng.readbacks.finish(device)


def dimension_of(dims: Sequence[str], size: int) -> str:
    """Which of ``dims``, texts "number:size", has the flagged size: "dimension 0 or 1" where several have."""
    numbers = [dim.partition(":")[0] for dim in dims if dim.endswith(f":{size}")]
    return " ".join(["dimension", *" or ".join(dict.fromkeys(numbers)).split()])


def check_flags(device: Device, flags: bytearray) -> None:
    """Raises, and clears, what a kernel flagged."""
    code, number, value, size = _FLAGS.unpack_from(flags)
    if not code:
        return
    device.upload(device.error_buffer, 0, bytes(ERROR_BYTES))
    op, *dims = operation_name(number).removeprefix("aten::").split(" ")
    hint = "" if "where" in config().debug else f" ({HINT})"
    if code == INDEX_OUT_OF_RANGE and op in PYTORCHS_WORDS:
        error, words, of_negative = PYTORCHS_WORDS[op]
        words = words if of_negative is None or value >= 0 else of_negative
        called = op.removesuffix("_forward")
        raise error(f"{words.format(value=value, size=size)} ({called}{f'; {HINT}' if hint else ''})")
    if code == INDEX_OUT_OF_RANGE:
        kind = OutOfRangeError if op in RUNTIME_ERRORS else IndexError
        dimension = dimension_of(dims, size)
        raise kind(f"{op}: index {value} is out of bounds for {dimension} with size {size}{hint}")
    raise RuntimeError(f"{op}: a kernel flagged error {code} (values {value}, {size}){hint}")
