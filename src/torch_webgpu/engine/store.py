"""The tensors of the process and the devices they are on: making them, counting them, learning of their deaths."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from torch_webgpu.caches import Cache
from torch_webgpu.dtypes import BY_TORCH
from torch_webgpu.errors import (
    AddressError,
    ForkError,
    NoAdapterError,
    OutOfMemoryError,
    UnsupportedDtypeError,
    WebGPUError,
)
from torch_webgpu.layout import MAX_BYTES, MAX_INDEX, contiguous_strides
from torch_webgpu.runtime.runtime import add_devices, devices
from torch_webgpu.runtime.tally import Tally
from torch_webgpu.target import Target

from .interrupt import Uninterrupted
from .lane import Lanes
from .layouts import misplaced
from .tensor import ADDRESS_BITS, FIRST_ADDRESS, FIRST_BYTE, LARGE_BYTES, OFFSET_MASK, Allocation, Mailbox, Template

if TYPE_CHECKING:
    from torch_webgpu.runtime.implementation import Adapter
    from torch_webgpu.runtime.runtime import Buffer, Device

TEMPLATE_CACHE_SIZE = 50_000
FIRST_DESCRIBED, LAST_INDEX = 64, 127
"""Indices from the first on are of devices that stand for targets; PyTorch has 8 bits for one."""
FLOAT64_TYPES = frozenset({torch.float64, torch.complex128})


def templates() -> Cache[Hashable, Template]:
    """What makes tensors of a layout, for those that were made last."""
    return Cache("layouts of tensors", TEMPLATE_CACHE_SIZE)


class Store:
    """Tensors and devices. One per process; every method is thread-safe."""

    _storage_only_hooks: ClassVar[list[Callable[[], None]]] = []

    @classmethod
    def when_storage_only(cls, hook: Callable[[], None]) -> None:
        """``hook()`` is called when the first tensor of a dtype without kernels is made, and perhaps again."""
        cls._storage_only_hooks.append(hook)

    def on_huge(self) -> None:
        """Called when an allocation is made in which tensors may start where kernels cannot address them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_forked = False  # asking for the process's number each time takes microseconds
        self.lock = threading.RLock()
        self.mailbox = Mailbox()
        self.lanes = Lanes()
        self.live_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}
        self.freed_bytes: dict[int, int] = {}
        self.forgotten_bytes: dict[int, int] = {}  # alive when the accumulated counters were reset
        self._largest_bytes: dict[int, int] = {}  # that a buffer can have, by device
        self._gone_bytes: dict[int, int] = {}  # of large tensors known to be dead, which still count as live
        self.dying: list[Allocation] = []
        """Those whose storages have died, until nothing recorded needs their memory."""
        self.templates = templates()
        self._is_mixed = False  # whether tensors may be of several devices
        self.described: dict[int, Device] = {}
        """Devices that stand for targets, by index: plans are traced on them, and nothing runs."""

    @cached_property
    def devices(self) -> list[Device]:
        """The adapters, best first. Raises NoAdapterError when there is none."""
        opened = devices()
        if not opened:
            raise NoAdapterError(
                "no WebGPU adapter found. Install a GPU driver with Vulkan, Metal or D3D12 support, or a software "
                "adapter (Debian/Ubuntu: apt install libvulkan1 mesa-vulkan-drivers); `torch-webgpu doctor` "
                "shows what is there"
            )
        self.mailbox.self_test()
        return opened

    def device(self, index: int) -> Device:
        if self.is_forked:
            self.check_process()
        if index >= FIRST_DESCRIBED:
            return self.described[index]
        try:
            return self.devices[index]
        except IndexError:
            raise RuntimeError(
                f"webgpu:{index} does not exist: this machine has {len(self.devices)} WebGPU adapter(s)"
            ) from None

    def add_devices(self, adapters: Sequence[Adapter]) -> list[Device]:
        """Makes devices of more adapters, behind all that there are. WebGPUError where there are too many."""
        with self.lock:
            if len(devices()) + len(adapters) > FIRST_DESCRIBED:
                raise WebGPUError(f"a process has at most {FIRST_DESCRIBED} webgpu devices, closed ones included")
            made = add_devices(adapters)
            if "devices" in self.__dict__:
                self.devices.extend(made)
            return made

    def describe(self, target: Target) -> int:
        """The index of the device that stands for a target. WebGPUError where there are too many of them."""
        with self.lock:
            for index, device in self.described.items():
                if device.target == target:
                    return index
            index = FIRST_DESCRIBED + len(self.described)
            if index > LAST_INDEX:
                raise WebGPUError(f"one process compiles for at most {LAST_INDEX + 1 - FIRST_DESCRIBED} targets")
            if not self.described:
                self.mailbox.self_test()
            from torch_webgpu.runtime.described import DescribedDevice

            self.described[index] = DescribedDevice(index, target)
            return index

    def check_process(self) -> None:
        if self.is_forked:
            raise ForkError(
                "the webgpu device cannot be used in a forked process: GPU handles do not survive a fork. "
                "Use torch.multiprocessing.set_start_method('spawn'), or keep webgpu tensors out of the child"
            )

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, device: int = 0, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """An uninitialised tensor. Memory is taken when a flush first needs it; sizes are checked now."""
        return self.make(self.template(shape, dtype, device, strides))

    def template(
        self, shape: Sequence[int], dtype: torch.dtype, device: int = 0, strides: Sequence[int] | None = None
    ) -> Template:
        """What :meth:`make` makes tensors of this layout from."""
        key = (tuple(shape), None if strides is None else tuple(strides), dtype, device)
        template = self.templates.get(key) or self.templates.promote(key)
        if template is None:
            template = self.templates[key] = self._new_template(*key)
        return template

    def _new_template(
        self, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: torch.dtype, device: int
    ) -> Template:
        with self.lock:
            if device not in self.live_bytes:
                self.device(device)
                self.live_bytes[device] = self.peak_bytes[device] = 0
                self._is_mixed = len([n for n in self.live_bytes if n < FIRST_DESCRIBED]) > 1
        if dtype in FLOAT64_TYPES:
            self._check_float64(dtype, device)
        if dtype not in BY_TORCH:
            for hook in self._storage_only_hooks:
                hook()
        return Template(shape, contiguous_strides(shape) if strides is None else strides, dtype, device)

    def make(self, template: Template) -> torch.Tensor:
        """A new tensor of a known layout, uninitialised."""
        with self.lock:
            return self.make_with(template)[0]

    def make_with(self, template: Template) -> tuple[torch.Tensor, Allocation]:
        """:meth:`make`, and the new tensor's allocation; the caller holds the lock."""
        if not self.mailbox.open:
            self.reclaim()
        created = self.mailbox.make(template)
        if template.size_bytes > LARGE_BYTES:
            self._account(created[1])
        else:
            try:
                self.live_bytes[template.device] += template.size_bytes
            except KeyError:
                self.check_process()
                raise
        return created

    def make_temporary(self, template: Template) -> Allocation:
        """What a tensor of this layout would lie in, without the tensor, until :meth:`end_temporaries`; the caller
        holds the lock.
        """
        if self.is_forked:
            self.check_process()
        if template.size_bytes > LARGE_BYTES:
            self.check_size(template.size_bytes, template.device)
        return self.mailbox.new_allocation(template)

    def end_temporaries(self, allocations: Sequence[Allocation]) -> None:
        """Their memory goes back when nothing recorded needs it; the caller holds the lock."""
        device = allocations[0].device
        # Counted here alone: what a signal's handler keeps from ending has no memory.
        self.live_bytes[device] += sum([a.size_bytes for a in allocations])
        self._note_peak(device)
        for allocation in allocations:
            allocation.alive = False
        self._count_dead(allocations)

    def _count_dead(self, dead: Sequence[Allocation]) -> None:
        sizes: dict[int, int] = {}
        for allocation in dead:
            sizes[allocation.device] = sizes.get(allocation.device, 0) + allocation.size_bytes
        for device, size in sizes.items():
            self.live_bytes[device] -= size
            self.freed_bytes[device] = self.freed_bytes.get(device, 0) + size
        self.dying += dead

    def _check_float64(self, dtype: torch.dtype, index: int) -> None:
        device = self.device(index)
        if not device.target.float64:
            narrow = "torch.complex64" if dtype.is_complex else "torch.float32"
            if index >= FIRST_DESCRIBED:
                raise UnsupportedDtypeError(
                    f"the target {device.name!r} has no 64-bit floats, so it cannot hold {dtype}: convert to {narrow}"
                )
            is_dawn = device.implementation == "dawn"  # others have no second implementation for the same GPU
            wgpu = ", or set TORCH_WEBGPU_IMPLEMENTATION=wgpu, which has them where the GPU does" if is_dawn else ""
            raise UnsupportedDtypeError(
                f"webgpu:{index} ({device.name}) has no 64-bit floats, so it cannot hold {dtype}: convert to {narrow} "
                f"first, or keep the tensor on the CPU{wgpu}"
            )

    def _account(self, allocation: Allocation) -> None:
        """Counts a large allocation."""
        size, device = allocation.size_bytes, allocation.device
        allocation.size_bytes = 0  # what its death gives back, if it turns out to be too large
        self.check_size(size, device)
        allocation.size_bytes = size
        self.live_bytes[device] += size
        # Tensors that died since the last look at them still count: those of a size must not set a false record.
        if self.live_bytes[device] - self._gone_bytes.get(device, 0) > self.peak_bytes[device]:
            for dead in self.mailbox.dead_large():
                self._gone_bytes[dead.device] = self._gone_bytes.get(dead.device, 0) + dead.size_bytes
            self._note_peak(device)

    def _note_peak(self, device: int) -> None:
        live = self.live_bytes[device] - self._gone_bytes.get(device, 0)
        self.peak_bytes[device] = max(self.peak_bytes[device], live)

    def check_size(self, size: int, index: int) -> None:
        """Raises at once for what no buffer of this adapter can hold, or no kernel can address."""
        largest = self._largest_bytes.get(index)
        if largest is None:
            largest = self._largest_bytes[index] = self.device(index).limits["max-buffer-size"]
        if min(largest, MAX_BYTES) >= size > MAX_INDEX:
            self.on_huge()
        if largest >= size > MAX_BYTES:
            raise AddressError(
                f"webgpu:{index} cannot hold a tensor of {size / 2**30:.2f} GiB ({size} bytes), although its memory "
                f"may suffice: storages have addresses of 36 bits, which end at {MAX_BYTES / 2**30:.2f} GiB. "
                "Use several tensors"
            )
        if size > largest:
            device = self.device(index)
            self.reclaim()
            raise OutOfMemoryError(
                f"WebGPU out of memory. webgpu:{index} ({device.name}) cannot hold a tensor of {size / 2**30:.2f} GiB "
                f"({size} bytes): its buffers end at {largest / 2**30:.2f} GiB.\n{device.memory_summary()}"
            )

    def allocation(self, t: torch.Tensor) -> Allocation:
        """What a webgpu tensor lies in."""
        return self.mailbox.allocations[address_of(t) >> ADDRESS_BITS]

    def locate(self, t: torch.Tensor) -> tuple[Allocation, int]:
        """What a webgpu tensor lies in, and how many bytes after the start of that."""
        address = t.data_ptr() or address_of(t)
        return self.mailbox.allocations[address >> ADDRESS_BITS], (address & OFFSET_MASK) - FIRST_BYTE

    def allocations_at(self, addresses: Sequence[int]) -> list[Allocation] | None:
        """What lies at these addresses; None if one of them is not this device type's."""
        known = self.mailbox.allocations
        try:
            return [known[address >> ADDRESS_BITS] for address in addresses]
        except KeyError:
            return None

    @property
    def repeats_addresses(self) -> bool:
        """Whether an address may stand for another allocation than it once did."""
        return self.mailbox.rounds > 0

    @contextmanager
    def telling_devices_apart(self) -> Iterator[None]:
        """Refuses operations over tensors of several devices meanwhile, also where one of them is only described."""
        before, self._is_mixed = self._is_mixed, True
        try:
            yield
        finally:
            self._is_mixed = before

    def addresses(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Where these tensors start, all of one webgpu device; RuntimeError if they are not."""
        addresses = [t.data_ptr() for t in tensors]
        if addresses and min(addresses) < FIRST_ADDRESS:
            # PyTorch gives tensors without elements no address; or there is one on the CPU.
            addresses = [address_of(t) for t in tensors]
            if min(addresses) < FIRST_ADDRESS:
                raise misplaced(tensors)
        if self._is_mixed:
            known = self.mailbox.allocations
            if len({known[address >> ADDRESS_BITS].device for address in addresses}) > 1:
                raise misplaced(tensors)
        return addresses

    def collect(self) -> None:
        """Learns which storages have died; their memory follows when nothing recorded needs it."""
        if self._gone_bytes:
            self._gone_bytes.clear()
        dead = self.mailbox.dead()
        if dead:
            self._count_dead(dead)
        for device, size in self.live_bytes.items():
            if size > self.peak_bytes[device]:
                self.peak_bytes[device] = size

    def sweep(self, running: Container[int] = (), waiting: Container[int] | None = None) -> None:
        """Returns the memory of what died and nothing recorded (``waiting``, if known) or ``running`` needs."""
        if not self.dying:
            return
        if waiting is None:
            waiting = self.lanes.needed_beside(None)
        dead, self.dying = self.dying, []
        known = self.mailbox.allocations
        returned: dict[int, list[Buffer]] = {}
        for allocation in dead:
            number, buffer = allocation.number, allocation.buffer
            if number in running or number in waiting:
                self.dying.append(allocation)
                continue
            del known[number]  # nothing recorded names it any more
            if buffer is not None:
                allocation.buffer = None
                returned.setdefault(allocation.device, []).append(buffer)
        for device, buffers in returned.items():
            self.devices[device].release_all(buffers)

    def tensor_bytes(self, index: int) -> Tally:
        """What the tensors on a device hold, and have held."""
        with Uninterrupted(), self.lock:
            self.reclaim()
            current, freed = self.live_bytes.get(index, 0), self.freed_bytes.get(index, 0)
            peak = max(self.peak_bytes.get(index, 0), current)
            return Tally(current, peak, current + freed - self.forgotten_bytes.get(index, 0), freed)

    def reset_peak(self, index: int) -> None:
        """The peak of :meth:`tensor_bytes`, and of the device's own counters, starts again from what there is now."""
        with Uninterrupted(), self.lock:
            self.reclaim()
            self.peak_bytes[index] = self.live_bytes.get(index, 0)
            self.device(index).reset_peak_stats()

    def reset_accumulated(self, index: int) -> None:
        """What was allocated and freed so far is forgotten, by :meth:`tensor_bytes` and the device's own counters."""
        with Uninterrupted(), self.lock:
            self.reclaim()
            self.freed_bytes[index], self.forgotten_bytes[index] = 0, self.live_bytes.get(index, 0)
            self.device(index).reset_accumulated_stats()

    def materialised(self) -> list[Allocation]:
        """What tensors that live have memory for."""
        with Uninterrupted(), self.lock:
            return [a for a in self.mailbox.allocations.values() if a.alive and a.buffer is not None]

    def reclaim(self) -> None:
        """Returns the memory of tensors that died and that nothing recorded needs."""
        with Uninterrupted(), self.lock:
            self.check_process()
            self.collect()
            self.sweep()


def address_of(t: torch.Tensor) -> int:
    """Where a tensor starts, also if it has no elements and PyTorch therefore gives no address."""
    return t.data_ptr() or t.untyped_storage().data_ptr() + int(t.storage_offset()) * t.element_size()


def offset_in_allocation(t: torch.Tensor) -> int:
    """Bytes from where a tensor's allocation starts to the tensor. Its storage may be a slice of another one."""
    return (address_of(t) & OFFSET_MASK) - FIRST_BYTE
