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
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch

from torch_webgpu.dtypes import STORED
from torch_webgpu.errors import UnsupportedDtypeError, WebGPUError
from torch_webgpu.layout import contiguous_strides, extent

KDL_EXT_DEV = 12
SLOT_BYTES = 256
SLAB_SLOTS = 256
HEAD_BYTES = 64
MAX_DIMS_IN_SLOT = (SLOT_BYTES - HEAD_BYTES) // 16
# DLManagedTensor: data; device type and id, ndim, type code, bits and lanes; shape; strides; byte offset, context,
# deleter. Only the addresses differ between tensors of one layout.
_KIND, _TAIL = struct.Struct("=iiiBBH"), struct.Struct("=QQQ")
_PACK_SLOT = [struct.Struct(f"=Q16sQQ{_TAIL.size + 16 * n}s").pack_into for n in range(MAX_DIMS_IN_SLOT + 1)]
ADDRESS_BITS = 36
"""Allocations are 2**36 bytes apart in the virtual address space, so that one never runs into the next."""
FIRST_BYTE = 0x100
"""Where in its part of the address space an allocation starts: aligned as on CUDA, and the low 32 bits are never zero,
whichever half a zeroing function clears."""
LARGE_BYTES = 1 << 20
"""Of larger tensors each death matters: see :attr:`Mailbox.large`."""
WORD_BYTES = 8
DATA, SHAPE, STRIDES_END = 0, 3, 5
"""Where a slot's addresses are, in words: of its data; from the shape's to the strides'."""
MARK_BYTE, FREE = 1, 0x100
"""The byte of a slot's head that is zero only if its tensor is dead: 1 in ``FIRST_BYTE``, and in a free slot's head."""
OFFSET_MASK = (1 << ADDRESS_BITS) - 1
FIRST_NUMBER, LAST_NUMBER = 1 << 20, 1 << 27
"""Numbers of allocations: above the addresses of a process's own memory (57 bits at most), below 2**63."""
FIRST_ADDRESS = FIRST_NUMBER << ADDRESS_BITS
"""Below are tensors of the process's own memory, and those without elements."""

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
from_dlpack = torch._C._from_dlpack


def _zeroing_function() -> int:
    """The address of a C function that zeroes (at least four bytes of) what its first argument points to."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.InitializeSRWLock
    else:
        function = ctypes.CDLL(None).sigemptyset
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_ZEROING = _zeroing_function()


class Allocation:
    """The memory behind one Storage. ``buffer`` is the runtime's, None until something must lie in it.

    ``number`` names it: the part of its tensors' addresses above ``ADDRESS_BITS``.
    """

    __slots__ = ("__weakref__", "alive", "buffer", "device", "error", "number", "size_bytes")

    def __init__(self, number: int, device: int, size_bytes: int) -> None:
        self.number = number
        self.device = device
        self.size_bytes = size_bytes
        self.buffer: Any = None
        self.alive = True
        self.error: Exception | None = None

    @property
    def address(self) -> int:
        """The data pointer of its storage."""
        return self.number << ADDRESS_BITS | FIRST_BYTE

    def __repr__(self) -> str:
        return f"Allocation({self.address:#x}, webgpu:{self.device}, {self.size_bytes} bytes)"


class Template:
    """All that tensors of one layout have in common: made once, so that making a tensor is a few writes.

    Raises UnsupportedDtypeError for a dtype that PyTorch's DLPack import does not know, RuntimeError for a layout whose
    bytes 63 bits cannot count: PyTorch's import would end the process.
    """

    __slots__ = ("device", "dims", "kind", "offset_view", "pack", "size_bytes", "strides_at", "tail")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: int) -> None:
        try:
            row = STORED[dtype]
        except KeyError:
            raise UnsupportedDtypeError(
                f"the webgpu device cannot hold {dtype}: convert to another dtype first (torch.float16 and torch.uint8 "
                "are the smallest), or keep the tensor on the CPU"
            ) from None
        elements = extent(shape, strides)
        self.device = device
        self.size_bytes = elements * row.itemsize
        # A storage's size is that of its first tensor, read off a contiguous shape: make that, then the view.
        plain = strides == contiguous_strides(shape)
        if self.size_bytes >> 63:
            layout = f"sizes={list(shape)}" + ("" if plain else f" and strides={list(strides)}")
            raise RuntimeError(f"Storage size calculation overflowed with {layout}")
        self.offset_view = None if plain else (shape, strides)
        dims = shape if plain else (elements,)
        numbers = (*dims, *contiguous_strides(dims))
        self.kind = _KIND.pack(KDL_EXT_DEV, device, len(dims), row.dlpack, row.bits, 1)
        self.strides_at = 8 * len(dims)
        self.dims = np.array(numbers, np.int64) if len(dims) > MAX_DIMS_IN_SLOT else None
        in_slot = () if self.dims is not None else numbers
        self.tail = _TAIL.pack(0, 0, _ZEROING) + struct.pack(f"={len(in_slot)}q", *in_slot)
        self.pack = _PACK_SLOT[len(in_slot) // 2]


class Image:
    """The slots of a list of new tensors of one device: all but addresses is known, and written by one copy of this."""

    def __init__(self, templates: Sequence[Template]) -> None:
        memory = bytearray(len(templates) * SLOT_BYTES)
        for k, t in enumerate(templates):
            dims = HEAD_BYTES if t.dims is None else t.dims.ctypes.data
            t.pack(memory, k * SLOT_BYTES, 0, t.kind, dims, dims + t.strides_at, t.tail)
        words = np.frombuffer(memory, np.uint64).reshape(len(templates), -1)
        self.words = words[:, : 1 + int(np.flatnonzero(words.any(0))[-1])].copy()
        self.dims_in_slot = np.array([[t.dims is None] for t in templates], np.uint64)
        self.templates = tuple(templates)  # which own the dims that are not in a slot
        self.sizes = [t.size_bytes for t in templates]
        self.device = templates[0].device
        self.size_bytes, self.largest_bytes = sum(self.sizes), max(self.sizes)
        self.views = [(k, t.offset_view) for k, t in enumerate(templates) if t.offset_view is not None]


class Slab:
    """A block of DLManagedTensor slots; a live slot's head is its address, a dead one's zero, a free one's ``FREE``.

    Heads are looked at by their low halves: all that every platform's zeroing function is sure to clear.
    """

    def __init__(self) -> None:
        self.memory = bytearray(SLAB_SLOTS * SLOT_BYTES)
        # Never freed: tensors may outlive this object, and everything else, when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.memory))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.words = memoryview(self.memory).cast("I")
        np.frombuffer(self.memory, np.uint32)[:: SLOT_BYTES // 4] = FREE
        self.owners: list[Allocation | None] = [None] * SLAB_SLOTS
        self.free = list(range(SLAB_SLOTS - 1, -1, -1))
        self.resting: list[int] = []  # dead at the last look: what zeroed their heads may not have returned yet

    def fill(
        self, slots: list[int], words: np.ndarray, dims_in_slot: np.ndarray, allocations: Sequence[Allocation]
    ) -> list[int]:
        """Writes rows of an :class:`Image` into slots; the slots' addresses."""
        rows = np.array(slots, np.uint64)
        places = rows * np.uint64(SLOT_BYTES) + np.uint64(self.base)
        words[:, SHAPE:STRIDES_END] += places[:, None] * dims_in_slot
        memory = np.frombuffer(self.memory, np.uint64).reshape(SLAB_SLOTS, SLOT_BYTES // WORD_BYTES)
        memory[rows, : words.shape[1]] = words
        for slot, allocation in zip(slots, allocations):
            self.owners[slot] = allocation
        return places.tolist()


class Mailbox:
    """Makes tensors and learns of their storages' deaths."""

    def __init__(self) -> None:
        self._slabs: list[Slab] = []
        self.open: list[Slab] = []
        """Those with a free slot. With none the next tensor takes a new slab: ask :meth:`dead` before."""
        self.mark = FIRST_NUMBER
        """The number of the next allocation."""
        self.rounds = 0
        """How often numbers have begun again: only after the first time does one stand for several allocations."""
        self._end = LAST_NUMBER  # where the free numbers from ``mark`` on end
        self.allocations: dict[int, Allocation] = {}
        """Those whose storages are alive, and the dead ones until they are forgotten, by number."""
        self.large: dict[int, tuple[Slab, int]] = {}
        """The slots of large allocations that were alive when they were last looked at, by number."""

    def make(self, template: Template) -> tuple[torch.Tensor, Allocation]:
        """A new tensor over a new, unmaterialised allocation just large enough for it."""
        slab = self.open[-1] if self.open else self.new_slab()
        index = slab.free.pop()
        if not slab.free:
            self.open.pop()
        number = self.mark
        if number == self._end:
            number = self._next_free()
        self.mark = number + 1
        at = index * SLOT_BYTES
        where = slab.base + at
        dims = where + HEAD_BYTES if template.dims is None else template.dims.ctypes.data
        template.pack(
            slab.memory, at, number << ADDRESS_BITS | FIRST_BYTE, template.kind, dims, dims + template.strides_at,
            template.tail,
        )  # fmt: skip
        allocation = Allocation(number, template.device, 0)
        slab.owners[index] = allocation
        self.allocations[number] = allocation
        tensor: torch.Tensor | None = None
        try:
            if template.size_bytes > LARGE_BYTES:
                self.large[number] = slab, index
            tensor = from_dlpack(new_capsule(where, b"dltensor", None))
            if template.offset_view is not None:
                tensor = as_strided(tensor, *template.offset_view, 0)
        except BaseException:  # of a signal's handler
            if tensor is None:
                slab.words[at // 4] = 0  # nothing else will
            raise
        allocation.size_bytes = template.size_bytes  # at last: it counts as alive from when this returns
        return tensor, allocation

    def new_allocation(self, template: Template) -> Allocation:
        """An unmaterialised allocation just large enough for a tensor that nobody will see."""
        number = self._take_number()
        allocation = self.allocations[number] = Allocation(number, template.device, template.size_bytes)
        return allocation

    def new_allocations(self, image: Image, numbers: Sequence[int]) -> list[Allocation]:
        """Unmaterialised allocations of these numbers, just large enough for a list of new tensors."""
        allocations = list(map(Allocation, numbers, repeat(image.device), image.sizes))
        self.allocations.update(zip(numbers, allocations))
        return allocations

    def make_many(self, image: Image, allocations: Sequence[Allocation]) -> list[torch.Tensor]:
        """Tensors over new allocations: :meth:`make` for a whole list, in a few vectorised steps."""
        count = len(allocations)
        words = image.words.copy()
        numbers = np.array([a.number for a in allocations], np.uint64)
        words[:, DATA] = (numbers << np.uint64(ADDRESS_BITS)) + np.uint64(FIRST_BYTE)
        places: list[int] = []
        while len(places) < count:
            slab = self.open[-1] if self.open else self.new_slab()
            start = max(0, len(slab.free) - count + len(places))
            slots = slab.free[start:]
            del slab.free[start:]
            if not slab.free:
                self.open.remove(slab)
            part = slice(len(places), len(places) + len(slots))
            places += slab.fill(slots, words[part], image.dims_in_slot[part], allocations[part])
            if image.largest_bytes > LARGE_BYTES:
                large = zip(allocations[part], slots)
                self.large.update({a.number: (slab, slot) for a, slot in large if a.size_bytes > LARGE_BYTES})
        tensors = list(map(from_dlpack, map(new_capsule, places, repeat(b"dltensor"), repeat(None))))
        for k, view in image.views:
            tensors[k] = as_strided(tensors[k], *view, 0)
        return tensors

    @property
    def free_slots(self) -> int:
        """How many tensors can be made without a new slab."""
        return sum([len(slab.free) for slab in self.open])

    def take_numbers(self, count: int) -> Sequence[int]:
        """The numbers of so many new allocations."""
        first = self.mark
        if self._end - first >= count:
            self.mark = first + count
            return range(first, first + count)
        return [self._take_number() for _ in range(count)]

    def _take_number(self) -> int:
        """The number of a new allocation; :meth:`make` has this in itself, where a call costs."""
        number = self.mark
        if number == self._end:
            number = self._next_free()
        self.mark = number + 1
        return number

    def new_slab(self) -> Slab:
        """Room for more tensors, which is used next."""
        self._slabs.append(Slab())
        self.open.append(self._slabs[-1])
        return self._slabs[-1]

    def _next_free(self) -> int:
        """The start of the next stretch of free numbers; ``_end`` is where it ends."""
        used = sorted(self.allocations)
        if self._end == LAST_NUMBER:
            self.rounds += 1
        number = FIRST_NUMBER if self._end == LAST_NUMBER else self._end
        at = bisect_left(used, number)
        while at < len(used) and used[at] == number:
            number, at = number + 1, at + 1
        if number == LAST_NUMBER:
            self._end = LAST_NUMBER
            return self._next_free()
        self._end = used[at] if at < len(used) else LAST_NUMBER
        return number

    def dead(self) -> list[Allocation]:
        """The allocations whose storages died since the last call, whose slots are free at the next call.

        A C library may clear more than the head (glibc's ``sigset_t`` has 128 bytes), in a thread that holds no lock of
        Python's: what is written into a slot at once could be cleared with it.
        """
        allocations: list[Allocation] = []
        for slab in self._slabs:
            if slab.resting:
                if not slab.free:
                    self.open.append(slab)
                slab.free += slab.resting
                slab.resting.clear()
            marks = slab.memory[MARK_BYTE::SLOT_BYTES]
            index = marks.find(0)
            if index < 0:
                continue
            find, words, owners, resting = marks.find, slab.words, slab.owners, slab.resting
            slot_words = SLOT_BYTES // 4
            while index >= 0:
                words[index * slot_words] = FREE
                resting.append(index)
                allocation: Any = owners[index]
                owners[index] = None
                allocation.alive = False
                allocations.append(allocation)
                index = find(0, index + 1)
        if self.large:  # of a size that may have changed since
            for allocation in allocations:
                self.large.pop(allocation.number, None)
        return allocations

    def dead_large(self) -> list[Allocation]:
        """The large allocations whose storages died since the last call, ahead of :meth:`dead`, which tells all."""
        dead = [number for number, (slab, index) in self.large.items() if not slab.words[index * SLOT_BYTES // 4]]
        for number in dead:
            del self.large[number]
        return [self.allocations[number] for number in dead]

    def forget(self, allocations: Iterable[Allocation]) -> None:
        """Frees the numbers of dead allocations, which nothing recorded names any more."""
        known = self.allocations
        for allocation in allocations:
            del known[allocation.number]

    def self_test(self) -> None:
        """Checks that this platform's zeroing function and PyTorch's DLPack import do what the mailbox needs."""
        tensor, allocation = self.make(Template((2, 3), (3, 1), torch.float32, 0))
        if tensor.untyped_storage().data_ptr() != allocation.address:
            raise WebGPUError("this PyTorch does not keep a DLPack data pointer; please report your torch version")
        del tensor
        if allocation not in self.dead():
            raise WebGPUError(f"no storage mailbox on {sys.platform}: the deleter left its argument as it was")
        self.forget([allocation])


_as_strided = torch.library.get_kernel(torch.ops.aten.as_strided.default, "CPU").call_boxed
_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def as_strided(t: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int | None) -> torch.Tensor:
    """A view sharing ``t``'s storage. PyTorch's CPU kernel is device-agnostic and never touches the data."""
    return _as_strided(_CPU_KEYS, t, shape, strides, offset)
