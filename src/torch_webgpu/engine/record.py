"""Recording: what an ATen kernel calls instead of computing.

The :class:`Engine` owns the process's tensors and, per device, the nodes recorded since the last flush. Recording is
cheap and never waits; a flush (:mod:`.flush`) turns the nodes into GPU commands.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Container, Hashable, Sequence
from functools import cached_property
from threading import get_ident
from typing import TYPE_CHECKING

import torch

from torch_webgpu.config import config
from torch_webgpu.errors import (
    DeviceLostError,
    ForkError,
    NoAdapterError,
    OutOfMemoryError,
    UnsupportedDtypeError,
)
from torch_webgpu.ir.graph import Body, Extern, Operation, Spec
from torch_webgpu.layout import contiguous_strides
from torch_webgpu.lower.fuse import Limits
from torch_webgpu.runtime.runtime import devices
from torch_webgpu.wgsl.expr import split_scalar

from .capture import Capture, Graphs
from .clock import FlushClock
from .flush import execute, replay
from .interrupt import Uninterrupted
from .lane import Lane, Lanes, Recording
from .layouts import copy_body, layout_key, misplaced, spec_of, tangled
from .lists import flush_lists
from .pressure import Pressure
from .replay import Plan, Planner
from .tensor import ADDRESS_BITS, FIRST_ADDRESS, FIRST_BYTE, Allocation, Mailbox, Template
from .watch import is_watched, run_watched

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

Scalar = tuple[str, int | float | bool | complex]
"""A scalar argument: its compute kind (``dtypes.DType.kind``) and its value."""

OPERATION_CACHE_SIZE = 20_000
TEMPLATE_CACHE_SIZE = 50_000
MAX_FUSED_BUFFERS = 31
"""Of one fused kernel. Adapters may allow half a million, but the wider a kernel, the fewer recordings it serves."""
LARGE_BYTES = 1 << 20
"""Below this no adapter's buffer limit is asked: WebGPU guarantees 256 MiB."""


FLOAT64_TYPES = frozenset({torch.float64, torch.complex128})


def ends_batch(op: Operation, fullness: float) -> bool:
    """Whether a batch that is at least half full is better submitted before ``op``.

    Batches cut by their length alone would end at another place in every iteration of a loop, and hardly two would
    have the same plan. So they are cut by what is recorded, as in content-defined chunking: before a hand-written
    kernel, such as a product, which needs its operands in memory anyway, or else before a few operations that a hash
    picks. Wherever a loop's first batch began, the later ones soon end at the same places every time.
    """
    return isinstance(op.body, Extern) or (fullness >= 0.75 and op.id * 0x9E3779B1 >> 8 & 7 == 0)


class Engine:
    """Tensors, pending nodes, and when they are flushed. One per process; every method is thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.mailbox = Mailbox()
        self.lanes = Lanes()
        self.operations: dict[Hashable, Operation] = {}
        self.flushes = 0
        self.batching = config().batching
        self.fusion = config().fusion
        self.fusion_window = config().fusion_window
        self.fusion_min_size = 0
        self.planner = Planner()
        self.pressure = Pressure()
        self.capture: Capture | None = None  # what takes in the flushes of its device instead of running them
        self.graphs = Graphs()
        self.threshold = 64
        self.delay_ms = 16.0
        self.error: BaseException | None = None
        self.live_bytes: dict[int, int] = {}
        self.peak_bytes: dict[int, int] = {}
        self.freed_bytes: dict[int, int] = {}
        self.forgotten_bytes: dict[int, int] = {}  # alive when the accumulated counters were reset
        self._dying: list[Allocation] = []
        self._templates: dict[Hashable, Template] = {}
        self.pid = os.getpid()
        self.clock = FlushClock(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @cached_property
    def devices(self) -> list[Device]:
        """The adapters, best first. Raises NoAdapterError when there is none."""
        found = devices()
        if not found:
            raise NoAdapterError(
                "no WebGPU adapter found. Install a GPU driver with Vulkan, Metal or D3D12 support, or a software "
                "adapter (Debian/Ubuntu: apt install libvulkan1 mesa-vulkan-drivers); `torch-webgpu doctor` "
                "shows what is there"
            )
        self.mailbox.self_test()
        atexit.register(self._stop)  # after the runtime's own handler was registered, so it runs before it
        return found

    def device(self, index: int) -> Device:
        self.check_process()
        try:
            return self.devices[index]
        except IndexError:
            raise RuntimeError(
                f"webgpu:{index} does not exist: this machine has {len(self.devices)} WebGPU adapter(s)"
            ) from None

    def check_process(self) -> None:
        if os.getpid() != self.pid:
            raise ForkError(
                "the webgpu device cannot be used in a forked process: GPU handles do not survive a fork. "
                "Use torch.multiprocessing.set_start_method('spawn'), or keep webgpu tensors out of the child"
            )

    def _forget(self) -> None:
        """In a forked child: what the parent recorded is none of its business, and the lock's owner may be gone."""
        self.lock = threading.RLock()
        # Every use of a device that is not in these asks check_process first.
        self.lanes, self.live_bytes, self._templates = Lanes(), {}, {}

    def _stop(self) -> None:
        """At exit: ends the timer's thread before the devices are closed. What nobody can see any more is not run."""
        if os.getpid() != self.pid:
            return
        self.delay_ms = 0.0
        with self.lock:
            self.lanes.clear()
        self.clock.stop()

    def reset(self, index: int) -> None:
        """Opens a device anew, also after it was lost. The tensors it had raise DeviceLostError from then on."""
        with self.lock, Uninterrupted():
            device = self.device(index)
            if self.capture is not None:
                self.capture.refuse(index, "a device cannot be reset")
            lost = DeviceLostError(f"webgpu:{index} was reset, and this tensor's contents are lost with what it held")
            self.lanes.clear(index)
            for allocation in self.mailbox.allocations.values():
                if allocation.device == index:
                    allocation.buffer, allocation.error = None, lost
            self.error = None
            device.reopen()
            self.pressure.forget(index)

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
        found = self._templates.get(key)
        if found is None:
            found = self._new_template(*key)
            if len(self._templates) >= TEMPLATE_CACHE_SIZE:
                self._templates.clear()
            self._templates[key] = found
        return found

    def _new_template(
        self, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: torch.dtype, device: int
    ) -> Template:
        with self.lock:
            if device not in self.live_bytes:
                self.device(device)
                self.live_bytes[device] = self.peak_bytes[device] = 0
        if dtype in FLOAT64_TYPES:
            self._check_float64(dtype, device)
        return Template(shape, contiguous_strides(shape) if strides is None else strides, dtype, device)

    def make(self, template: Template) -> torch.Tensor:
        """A new tensor of a known layout, uninitialised."""
        with self.lock:
            return self.make_with(template)[0]

    def make_with(self, template: Template) -> tuple[torch.Tensor, Allocation]:
        """:meth:`make`, and the new tensor's allocation; the caller holds the lock."""
        if not self.mailbox.open:
            self.reclaim()
        made = self.mailbox.make(template)
        if template.size_bytes > LARGE_BYTES:
            self._account(made[1])
        else:
            try:
                self.live_bytes[template.device] += template.size_bytes
            except KeyError:
                self.check_process()
                raise
        return made

    def _check_float64(self, dtype: torch.dtype, index: int) -> None:
        device = self.device(index)
        if not device.caps.float64:
            raise UnsupportedDtypeError(
                f"webgpu:{index} ({device.name}) has no 64-bit floats, so it cannot hold {dtype}: convert to "
                f"{'torch.complex64' if dtype.is_complex else 'torch.float32'} first, or keep the tensor on the CPU"
            )

    def _account(self, allocation: Allocation) -> None:
        """Counts a large allocation."""
        size, device = allocation.size_bytes, allocation.device
        allocation.size_bytes = 0  # what its death gives back, if it turns out to be too large
        self._check_size(size, device)
        allocation.size_bytes = size
        self.live_bytes[device] += size
        # Tensors that died since the last flush still count: ask the mailbox before a large one sets a false record.
        if self.live_bytes[device] > self.peak_bytes[device]:
            self.collect()

    def _note_peak(self, device: int) -> None:
        self.peak_bytes[device] = max(self.peak_bytes[device], self.live_bytes[device])

    def _check_size(self, size: int, index: int) -> None:
        """Raises at once for what no buffer of this adapter can hold."""
        device = self.device(index)
        largest = device.limits["max-buffer-size"]
        if size > largest:
            self.reclaim()
            raise OutOfMemoryError(
                f"webgpu:{index} ({device.name}) cannot hold a tensor of {size / 2**30:.2f} GiB ({size} bytes): "
                f"its buffers end at {largest / 2**30:.2f} GiB.\n{device.memory_summary()}"
            )

    def allocation(self, t: torch.Tensor) -> Allocation:
        """What a webgpu tensor lies in."""
        return self.mailbox.allocations[t.untyped_storage().data_ptr() >> ADDRESS_BITS]

    def record(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        body: Callable[[tuple[Spec, ...]], Body],
        static: Hashable = (),
        scalars: Sequence[Scalar] = (),
    ) -> None:
        """Records one operation that reads ``inputs`` and writes ``outputs`` (tensors of one device).

        ``body(specs)`` builds the operation's body for the layouts of inputs and outputs; it is called once per
        ``(name, layouts, static)``, so everything else that decides the code must be in ``static``. ``scalars`` vary.
        """
        tensors = (*inputs, *outputs)
        kinds = tuple([kind for kind, _ in scalars])
        key = (name, layout_key(tensors), static, kinds, len(outputs))
        op = self.operations.get(key)
        if op is None:
            specs = tuple(map(spec_of, tensors))
            op = Operation(name, specs, len(outputs), body(specs), kinds)
            if len(self.operations) >= OPERATION_CACHE_SIZE:
                self.operations.pop(next(iter(self.operations)))
            self.operations[key] = op
        params = tuple([part for kind, value in scalars for part in split_scalar(value, kind)])
        if self.push_over(op, inputs, outputs, params):
            return
        overlapping = tangled(tensors, op.args, len(inputs))
        if overlapping:
            # Copies, so that writes cannot be seen by later reads.
            inputs = [self.copy_of(t) if k in overlapping else t for k, t in enumerate(inputs)]
            self.record(name, inputs, outputs, body, static, scalars)
        else:
            self.push(op, tensors, params)

    def copy_of(self, t: torch.Tensor) -> torch.Tensor:
        """A contiguous copy in a storage of its own."""
        out = self.empty(t.shape, t.dtype, t.device.index)
        if t.numel():
            self.record("copy", [t], [out], copy_body)
        return out

    def push(self, op: Operation, tensors: Sequence[torch.Tensor], params: tuple[int | float, ...] = ()) -> None:
        """Records an operation; flushes when the batch is full, or at once with batching off."""
        with self.lock:
            addresses = self._addresses(tensors)
            self.append(self.mailbox.allocations[addresses[-1] >> ADDRESS_BITS].device, op, addresses, params)

    def push_new(
        self,
        op: Operation,
        inputs: Sequence[torch.Tensor],
        templates: Sequence[Template],
        params: tuple[int | float, ...] = (),
    ) -> list[torch.Tensor]:
        """:meth:`push` of an operation whose outputs, returned, are new tensors."""
        with self.lock:
            addresses = self._addresses(inputs)
            outputs = []
            for template in templates:
                tensor, allocation = self.make_with(template)
                outputs.append(tensor)
                addresses += (allocation.number << ADDRESS_BITS | FIRST_BYTE,)
            self.append(template.device, op, addresses, params)
            return outputs

    def _addresses(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Where these tensors start, all of one webgpu device; RuntimeError if they are not."""
        addresses = tuple([t.data_ptr() for t in tensors])
        if addresses and min(addresses) < FIRST_ADDRESS:
            # PyTorch gives tensors without elements no address; or there is one on the CPU.
            addresses = tuple([address_of(t) for t in tensors])
            if min(addresses) < FIRST_ADDRESS:
                raise misplaced(tensors)
        if len(self.live_bytes) > 1:
            known = self.mailbox.allocations
            if len({known[address >> ADDRESS_BITS].device for address in addresses}) > 1:
                raise misplaced(tensors)
        return addresses

    def push_over(
        self,
        op: Operation,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        params: tuple[int | float, ...] = (),
    ) -> bool:
        """:meth:`push` of an operation that writes into given tensors.

        False, and nothing is recorded, where an input may share elements with an output other than lying on top of it.
        """
        n = len(inputs)
        for o, out in enumerate(outputs, start=n):
            written = out.data_ptr()
            for k, t in enumerate(inputs):
                address = t.data_ptr()
                if not (address ^ written) >> ADDRESS_BITS and not (address == written and op.args[k] == op.args[o]):
                    return False
        self.push(op, (*inputs, *outputs), params)
        return True

    def append(self, device: int, op: Operation, addresses: tuple[int, ...], params: tuple[int | float, ...]) -> None:
        """Records an operation over these addresses; the caller holds the lock."""
        if self.error is not None:
            self.raise_pending()  # what follows would build on what a flush in the background could not do
        lanes = self.lanes
        lane = lanes.current.get(device)
        if lane is None or lane.thread != get_ident():
            lane = self.lane(device)
        if lane.batch is not None:
            self.flush_lane(lane)
        recorded = len(lane.entries)
        if 2 * recorded >= self.threshold and ends_batch(op, recorded / self.threshold):
            self.flush_lane(lane)
            recorded = 0
        if not recorded:
            self.begin(lane)
        if len(lanes.busy) > 1:
            numbers = [address >> ADDRESS_BITS for address in addresses]
            self.settle(lane, numbers[: op.n_inputs], numbers[op.n_inputs :])
        lane.entries.append((op, addresses, params))
        if recorded + 1 >= self.threshold or not self.batching:
            self.flush_lane(lane)

    def lane(self, device: int) -> Lane:
        """The calling thread's lane of a device; the caller holds the lock."""
        self.check_process()
        return self.lanes.of_thread(device)

    def begin(self, lane: Lane) -> None:
        """Something is about to be recorded in an empty lane; the caller holds the lock."""
        self.check_process()
        if lane not in self.lanes.busy:
            self.lanes.busy.append(lane)
        self.clock.arm()

    def settle(self, lane: Lane, read: Sequence[int], written: Sequence[int]) -> None:
        """Submits what other threads recorded and what comes next depends on; the caller holds the lock."""
        for other in self.lanes.in_the_way(lane, read, written):
            self.flush_lane(other)

    @property
    def pending_count(self) -> int:
        """How many operations wait for a flush, of all threads and on all devices."""
        return sum([len(lane) for lane in self.lanes.busy.copy()])

    def flush(self, device: int | None = None) -> None:
        """Submits what is pending (of one device, or of all) without waiting for it."""
        with self.lock, Uninterrupted():
            self.check_process()
            lanes = self.lanes.on(device)
            for lane in lanes:
                self.flush_lane(lane)
            if not lanes:
                self.reclaim()

    def flush_for(self, allocation: Allocation) -> None:
        """Submits what an allocation's contents may depend on, and the rest of what the calling thread recorded."""
        own = self.lane(allocation.device)
        for lane in self.lanes.on(allocation.device):
            if lane is own or allocation.number in lane.writes:
                self.flush_lane(lane)

    def flush_lane(self, lane: Lane) -> None:
        """Submits what one thread has recorded; the caller holds the lock."""
        self.flushes += 1
        with Uninterrupted():
            device = self.devices[lane.device]
            self.collect()
            try:
                if lane.batch is not None:
                    flush_lists(self, lane)
                if lane.entries:
                    self._flush_entries(lane, device)
            finally:
                if lane in self.lanes.busy:
                    self.lanes.busy.remove(lane)
                self._sweep()
                device.retire()

    def _flush_entries(self, lane: Lane, device: Device) -> None:
        needed = self.lanes.needed_beside(lane)
        recording = Recording.of(lane.take(), self.mailbox.allocations, needed)
        self._sweep({a.number for a in recording.allocations})
        if self.capture is not None and self.capture.device is device:
            self.capture.run(recording)
        elif is_watched(device):
            run_watched(self, device, recording)
        else:
            plan = self.plan(recording, device)
            if plan.is_new or "record" in config().debug or not replay(device, plan, recording):
                execute(device, plan.nodes(recording.nodes()), recording.dead)
            self.pressure.submitted(device)

    def plan(self, recording: Recording, device: Device) -> Plan:
        """How a recording runs."""
        if not self.fusion:
            return self.planner.plan(recording, None)
        # One buffer is the kernel's error flags.
        buffers = min(device.limits["max-storage-buffers-per-shader-stage"] - 1, MAX_FUSED_BUFFERS)
        binding_bytes = device.limits["max-storage-buffer-binding-size"]
        return self.planner.plan(recording, Limits(buffers, self.fusion_window, self.fusion_min_size, binding_bytes))

    def collect(self) -> None:
        """Learns which storages have died; their memory follows when nothing recorded needs it."""
        self.graphs.collect()
        before = self.live_bytes.copy()
        for allocation in self.mailbox.dead():
            self.live_bytes[allocation.device] -= allocation.size_bytes
            self._dying.append(allocation)
        for device, size in before.items():
            self.freed_bytes[device] = self.freed_bytes.get(device, 0) + size - self.live_bytes[device]
            self._note_peak(device)

    def _sweep(self, running: Container[int] = ()) -> None:
        """Returns the memory of what died and nothing recorded or ``running`` (by number) needs."""
        if not self._dying:
            return
        waiting = self.lanes.needed_beside(None)
        kept = []
        for allocation in self._dying:
            if allocation.number in running or allocation.number in waiting:
                kept.append(allocation)
                continue
            self.mailbox.forget(allocation)
            if allocation.buffer is not None:
                self.devices[allocation.device].release(allocation.buffer)
                allocation.buffer = None
        self._dying = kept

    def reclaim(self) -> None:
        """Returns the memory of tensors that died and that nothing recorded needs."""
        with self.lock:
            self.check_process()
            self.collect()
            self._sweep()

    def raise_pending(self) -> None:
        """Raises the error of a flush that ran in the background, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error


def address_of(t: torch.Tensor) -> int:
    """Where a tensor starts, also if it has no elements and PyTorch therefore gives no address."""
    return t.data_ptr() or t.untyped_storage().data_ptr() + int(t.storage_offset()) * t.element_size()


_engine: Engine | None = None
_engine_lock = threading.Lock()


def engine() -> Engine:
    """The process's engine, made at the first use of the device."""
    global _engine
    if _engine is None:
        with _engine_lock:
            if _engine is None:
                _engine = Engine()
    return _engine


def started_in() -> int | None:
    """The process that made the engine; None while the device is unused."""
    return None if _engine is None else _engine.pid
