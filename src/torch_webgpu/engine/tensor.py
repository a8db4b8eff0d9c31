"""Tensors without C++: DLPack in, a mailbox out.

A webgpu tensor is a plain ``torch.Tensor`` made by ``torch._C._from_dlpack`` from a ``DLManagedTensor`` of device type
kDLExtDev whose data pointer is a *virtual address*, never dereferenced, that names one of our allocations. PyTorch
gives it a real Storage, so views, tied weights, Dynamo and functorch work unpatched.

Its death reaches us through the *mailbox*: the deleter is the address of a C function that needs neither the GIL nor
Python (libc's ``sigemptyset``) and does nothing but zero the head of the struct it is given. A Python callback here
would be called with an error pending when a tensor dies while an exception unwinds, and crash the process.
The structs live in slabs; a vectorised scan finds the zeroed ones.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_webgpu.errors import UnsupportedDtypeError, WebGPUError
from torch_webgpu.layout import contiguous_strides

KDL_EXT_DEV = 12
SLOT_BYTES = 256
SLAB_SLOTS = 1024
HEAD_BYTES = 64
MAX_DIMS_IN_SLOT = (SLOT_BYTES - HEAD_BYTES) // 16
# DLManagedTensor: data, device type and id, ndim, type code, bits and lanes, shape, strides, byte offset, context,
# deleter.
_HEAD = "QiiiBBHQQQQQ"
_PACK_SLOT = [struct.Struct(f"={_HEAD}{2 * n}q").pack_into for n in range(MAX_DIMS_IN_SLOT + 1)]
ADDRESS_BITS = 36
"""Allocations are 2**36 bytes apart in the virtual address space, so that one never runs into the next."""

# DLPack's type codes and widths, for the types that ``_from_dlpack`` understands.
_DL_TYPES: dict[torch.dtype, tuple[int, int]] = {
    torch.bool: (6, 8), torch.uint8: (1, 8), torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32),
    torch.int64: (0, 64), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.float32: (2, 32), torch.float64: (2, 64),
    torch.complex32: (5, 32), torch.complex64: (5, 64), torch.complex128: (5, 128),
}  # fmt: skip

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _zeroing_function() -> int:
    """The address of a C function that zeroes (at least four bytes of) what its first argument points to."""
    if sys.platform == "win32":
        return ctypes.cast(ctypes.windll.kernel32.InitializeSRWLock, ctypes.c_void_p).value or 0
    return ctypes.cast(ctypes.CDLL(None).sigemptyset, ctypes.c_void_p).value or 0


class Allocation:
    """The memory behind one Storage. ``buffer`` is the runtime's, None until something must lie in it."""

    __slots__ = ("__weakref__", "address", "alive", "buffer", "device", "error", "size_bytes")

    def __init__(self, address: int, device: int, size_bytes: int) -> None:
        self.address = address
        self.device = device
        self.size_bytes = size_bytes
        self.buffer: Any = None
        self.alive = True
        self.error: Exception | None = None

    def __repr__(self) -> str:
        return f"Allocation({self.address:#x}, webgpu:{self.device}, {self.size_bytes} bytes)"


class Slab:
    """A block of DLManagedTensor slots; a live slot's first word is its address, a dead one's is zero."""

    def __init__(self) -> None:
        self.memory = bytearray(SLAB_SLOTS * SLOT_BYTES)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # Low halves of the data pointers: all that every platform's zeroing function is sure to clear.
        self.heads = np.frombuffer(self.memory, dtype=np.uint32)[:: SLOT_BYTES // 4]
        self.used = np.zeros(SLAB_SLOTS, dtype=bool)
        self.owners: list[Allocation | None] = [None] * SLAB_SLOTS
        self.free = list(range(SLAB_SLOTS - 1, -1, -1))


class Mailbox:
    """Makes tensors and learns of their storages' deaths."""

    def __init__(self) -> None:
        self._deleter = _zeroing_function()
        self._slabs: list[Slab] = []
        self._open: list[Slab] = []
        self._next = 1
        self._keep: dict[int, Any] = {}
        self.allocations: dict[int, Allocation] = {}

    def is_since(self, allocation: Allocation, mark: int) -> bool:
        """Whether the allocation was made after :attr:`mark` had this value."""
        return allocation.address >> ADDRESS_BITS >= mark

    @property
    def mark(self) -> int:
        return self._next

    def _new_address(self) -> int:
        # The low 32 bits are never zero, whichever half a zeroing function clears; 256-byte alignment as on CUDA.
        address = (self._next << ADDRESS_BITS) | 0x100
        self._next += 1
        return address

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: int
    ) -> tuple[torch.Tensor, Allocation]:
        """A new tensor over a new, unmaterialised allocation just large enough for it."""
        try:
            code, bits = _DL_TYPES[dtype]
        except KeyError:
            raise UnsupportedDtypeError(
                f"the webgpu device cannot hold {dtype}: convert to another dtype first (torch.float16 and torch.uint8 "
                "are the smallest), or keep the tensor on the CPU"
            ) from None
        elements = 1
        for size, stride in zip(shape, strides, strict=True):
            if size == 0:
                elements = 0
                break
            elements += (size - 1) * stride
        allocation = Allocation(self._new_address(), device, elements * bits // 8)
        # A storage's size is that of its first tensor, read off a contiguous shape: make that, then the view.
        plain = elements == 0 or tuple(strides) == contiguous_strides(shape)
        dims = tuple(shape) if plain else (elements,)
        base = self._make(allocation, dims, code, bits)
        if plain:
            return base, allocation
        return as_strided(base, tuple(shape), tuple(strides), 0), allocation

    def _make(self, allocation: Allocation, shape: tuple[int, ...], code: int, bits: int) -> torch.Tensor:
        if not self._open:
            slab = Slab()
            self._slabs.append(slab)
            self._open.append(slab)
        slab = self._open[-1]
        index = slab.free.pop()
        if not slab.free:
            self._open.pop()
        where = slab.base + index * SLOT_BYTES
        n = len(shape)
        dims = where + HEAD_BYTES
        numbers = (*shape, *contiguous_strides(shape))
        if n > MAX_DIMS_IN_SLOT:
            apart = self._keep[where] = np.array(numbers, dtype=np.int64)
            dims, numbers = apart.ctypes.data, ()
        _PACK_SLOT[len(numbers) // 2](
            slab.memory, index * SLOT_BYTES, allocation.address, KDL_EXT_DEV, allocation.device, n, code, bits, 1,
            dims, dims + 8 * n, 0, 0, self._deleter, *numbers,
        )  # fmt: skip
        slab.owners[index] = allocation
        slab.used[index] = True
        self.allocations[allocation.address] = allocation
        return torch._C._from_dlpack(_new_capsule(where, b"dltensor", None))

    def dead(self) -> list[Allocation]:
        """The allocations whose storages died since the last call, now forgotten here."""
        found: list[Allocation] = []
        for slab in self._slabs:
            for index in np.flatnonzero(slab.used & (slab.heads == 0)).tolist():
                allocation = slab.owners[index]
                assert allocation is not None
                allocation.alive = False
                del self.allocations[allocation.address]
                slab.owners[index] = None
                slab.used[index] = False
                self._keep.pop(slab.base + index * SLOT_BYTES, None)
                if not slab.free:
                    self._open.append(slab)
                slab.free.append(index)
                found.append(allocation)
        return found

    def self_test(self) -> None:
        """Checks that this platform's zeroing function and PyTorch's DLPack import do what the mailbox needs."""
        tensor, allocation = self.empty((2, 3), (3, 1), torch.float32, 0)
        if tensor.untyped_storage().data_ptr() != allocation.address:
            raise WebGPUError("this PyTorch does not keep a DLPack data pointer; please report your torch version")
        del tensor
        if allocation not in self.dead():
            raise WebGPUError(f"no storage mailbox on {sys.platform}: the deleter left its argument as it was")


_CPU = torch._C.DispatchKey.CPU
_as_strided = torch.ops.aten.as_strided.default


def as_strided(t: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int | None) -> torch.Tensor:
    """A view sharing ``t``'s storage. PyTorch's CPU kernel is device-agnostic and never touches the data."""
    return _as_strided._op_dk(_CPU, t, shape, strides, offset)
