"""Recording: what an ATen kernel calls instead of computing.

The :class:`Engine` is the store of the process's tensors, and has what was recorded since the last flush in a lane for
each thread and device. Recording is cheap and never waits; a flush turns a lane's operations into GPU commands.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd import profiler

from torch_webgpu.caches import Cache
from torch_webgpu.compiler.fuse.patterns import Pattern
from torch_webgpu.config import is_printed
from torch_webgpu.errors import DeviceLostError, WebGPUError
from torch_webgpu.ir.operation import Body, Operation
from torch_webgpu.ir.values import check_function, check_values
from torch_webgpu.wgsl.expr import split_scalar

from . import addressing, flush_reason
from .backpressure import Backpressure
from .capture_mode import Intake
from .clock import Content, FlushClock
from .flush import Trailing, run
from .flush_reason import Cause
from .generators import RandomState
from .graph_memory import Graphs, PoolHandle
from .interrupt import Uninterrupted
from .lane import NOTHING, Lane, Lanes, numbers_of
from .large import record_divided
from .layouts import copy_body, layout_key, spec_of, tangled
from .observed import print_recording, run_watched
from .plan_cache import CachedPlan, FusionCounts, PlanCache
from .readbacks import Readbacks
from .recorded_lists import bury
from .recording import Recording
from .settings import Settings
from .store import FIRST_DESCRIBED, Store, templates
from .tensor import ADDRESS_BITS, Allocation

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device


TypedScalar = tuple[str, int | float | bool | complex]
"""A scalar argument: its compute kind (``dtypes.DType.kind``) and its value."""

EXIT_S = 0.05
"""How long daemon threads may run on at exit until they next use the device, and wait there."""
OPERATION_CACHE_SIZE = 20_000


class Engine(Store):
    """What is recorded, and when it is flushed. One per process; every method is thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Cache[Hashable, Operation] = Cache("operations", OPERATION_CACHE_SIZE)
        self.handovers = 0  # uploads, downloads and resized storages so far: what no recipe can say again
        self.relocations = 0
        """How often living tensors that had memory got other memory, or an error instead: what was known of theirs is
        known as long as this number."""
        self.settings = Settings()
        self.prints_recordings = is_printed("record")
        self.plans = PlanCache()
        self.backpressure = Backpressure()
        self.capture: Intake | None = None  # what takes in the flushes of its device, which do not run
        self.graphs = Graphs()
        self.readbacks = Readbacks()
        self._waited_for: dict[int, object] = {}  # what each device had been given when it was last waited for
        self.error: BaseException | None = None
        Operation.when_large.append(self.on_huge)
        self.clock = FlushClock(lambda: self.lanes.on(None), self.goes_on, self.flush_idle)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def on_huge(self) -> None:
        self.append = self._append_any_size  # type: ignore[method-assign]

    def _append_any_size(self, device: int, op: Operation, addresses: tuple[int, ...], params: Any) -> None:
        """:meth:`append`; what kernels cannot address is divided, or refused with AddressError."""
        if addressing.is_reached(op, addresses):
            type(self).append(self, device, op, addresses, params)
        else:
            record_divided(self, device, op, addresses, params)

    def _forget(self) -> None:
        """In a forked child: what the parent recorded is none of its business, and the lock's owner may be gone."""
        self.lock = threading.RLock()
        self.is_forked = True
        # Every use of a device that is not in these asks check_process first.
        self.lanes, self.live_bytes, self.templates, self.readbacks = Lanes(), {}, templates(), Readbacks()

    def stop(self) -> None:
        """At exit: ends the timer's thread and waits for the GPU, whose threads must not outlive the interpreter.

        The calling thread keeps the lock: threads that still run wait here for the end of the process, instead of
        calling the GPU's library while it is taken apart. The calling thread itself may go on, as handlers do that were
        registered before this package was imported. What is recorded and nobody reads is never run.
        """
        if os.getpid() != self.pid:
            return
        self.settings = replace(self.settings, delay_ms=0.0)
        self.clock.stop()
        self.lock.acquire()
        # Freed, it would be released: they would go on, and Python ends threads in a way that C++ ends the process for.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.lock))
        if threading.active_count() > 1:
            time.sleep(EXIT_S)  # time to get here
        for device in self.__dict__.get("devices", ()):
            device.finish()

    def reset(self, index: int) -> None:
        """Opens a device anew, also after it was lost. The tensors it had raise DeviceLostError from then on."""
        with Uninterrupted(), self.lock:
            device = self.device(index)
            self.refuse("a device cannot be reset", index)
            lost = DeviceLostError(f"webgpu:{index} was reset, and this tensor's contents are lost with what it held")
            self._forget_contents(index, lost)
            device.reopen()

    def close(self, index: int, reason: WebGPUError) -> None:
        """Closes a device for good: every use of it, and of the tensors it had, raises ``reason`` from then on."""
        with Uninterrupted(), self.lock:
            device = self.device(index)
            self.refuse("a device cannot be closed", index)
            self._forget_contents(index, reason)
            device.close(reason)

    def _forget_contents(self, index: int, reason: WebGPUError) -> None:
        self.lanes.clear(index)
        self.relocations += 1
        for allocation in self.mailbox.allocations.values():
            if allocation.device == index:
                allocation.buffer, allocation.error = None, reason
        self.error = None
        self.backpressure.forget(index)
        self.readbacks.forget(index)

    def change(self, **settings: Any) -> None:
        """Makes some of the :class:`Settings` others. What was recorded before is planned under those it was before."""
        with Uninterrupted(), self.lock:
            before, new = self.settings, replace(self.settings, **settings)
            try:
                if before.planning != new.planning or before.batching > new.batching:
                    self.flush(flush_reason.SETTING)
            finally:
                self.settings = new
                self.plans.settings_changed()
                if new.delay_ms > 0:
                    self.clock.delay_s = new.delay_ms / 1000

    @contextmanager
    def using(self, **settings: Any) -> Iterator[None]:
        """:meth:`change` for the length of a block."""
        before = self.settings
        self.change(**settings)
        try:
            yield
        finally:
            self.change(**{name: getattr(before, name) for name in settings})

    def record(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        body: Body | Callable[..., Body],
        arguments: tuple[Hashable, ...] = (),
        scalars: Sequence[TypedScalar] = (),
    ) -> Operation:
        """Records one operation, and returns it, that reads ``inputs`` and writes ``outputs`` (tensors of one device).

        Where ``body`` is a function, ``body(specs, *arguments)`` builds the operation's body for the layouts of inputs
        and outputs, once for each: it must be a function of a module, and its arguments values (:mod:`ir.values`).
        ``scalars`` vary, except in their kinds.
        """
        tensors = (*inputs, *outputs)
        kinds = tuple([kind for kind, _ in scalars])
        key = (name, layout_key(tensors), body, arguments, kinds, len(outputs))
        op = self.operations.get(key) or self.operations.promote(key)
        if op is None:
            specs = tuple(map(spec_of, tensors))
            if callable(body):
                check_function(name, body)
                check_values(name, arguments)
                op = Operation(name, specs, len(outputs), body(specs, *arguments), kinds)
            else:
                op = Operation(name, specs, len(outputs), body, kinds)
            self.operations[key] = op
        params = tuple([part for kind, value in scalars for part in split_scalar(value, kind)])
        if self.push_over(op, inputs, outputs, params):
            return op
        overlapping = tangled(tensors, op.args, len(inputs))
        if overlapping:
            # Copies, so that writes cannot be seen by later reads.
            inputs = [self.copy_of(t) if k in overlapping else t for k, t in enumerate(inputs)]
            self.record(name, inputs, outputs, body, arguments, scalars)
        else:
            self.push(op, tensors, params)
        return op

    def copy_of(self, t: torch.Tensor) -> torch.Tensor:
        """A contiguous copy in a storage of its own."""
        out = self.empty(t.shape, t.dtype, t.device.index)
        if t.numel():
            self.record("copy", [t], [out], copy_body)
        return out

    def push(self, op: Operation, tensors: Sequence[torch.Tensor], params: tuple[int | float, ...] = ()) -> None:
        """Records an operation; flushes when the batch is full, or at once with batching off."""
        with self.lock:
            addresses = self.addresses(tensors)
            self.append(self.mailbox.allocations[addresses[-1] >> ADDRESS_BITS].device, op, tuple(addresses), params)

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
        addresses = self.addresses((*inputs, *outputs))
        n = op.n_inputs
        for o in range(n, len(addresses)):
            written = addresses[o]
            for k in range(n):
                address = addresses[k]
                if address == written:
                    if (k, o) not in op.alike:
                        return False
                elif not (address ^ written) >> ADDRESS_BITS:
                    return False
        with self.lock:
            self.append(self.mailbox.allocations[addresses[-1] >> ADDRESS_BITS].device, op, tuple(addresses), params)
        return True

    def append(self, device: int, op: Operation, addresses: tuple[int, ...], params: tuple[int | float, ...]) -> None:
        """Records an operation over these addresses; the caller holds the lock."""
        lanes = self.lanes
        lane = lanes.current.get(device)
        if lane is None or lane.thread != get_ident():
            lane = self.lane(device)
        busy, recorded = lanes.busy, len(lane.entries)
        may_end = recorded >= self.settings.unended
        if may_end and self.settings.ends_before(op, recorded):
            self.flush_lane(lane, flush_reason.cut(op))
        if not lane.entries:
            if busy or self.error is not None or self.clock.wants_arming():
                self.begin(lane)
            else:  # nearly always
                busy.append(lane)
        if len(busy) > 1:
            self.settle(lane, numbers_of(addresses[: op.n_inputs]), numbers_of(addresses[op.n_inputs :]))
        lane.entries.append((op, addresses, params))
        if lane not in busy:  # the handler of a signal may have flushed it since it began
            busy.append(lane)
        if may_end and (len(lane.entries) >= self.settings.threshold or not self.settings.batching):
            self._end_after(lane)

    def _end_after(self, lane: Lane) -> None:
        """Flushes a lane that is full, or any with batching off."""
        settings = self.settings
        self.flush_lane(lane, flush_reason.full(settings.threshold) if settings.batching else flush_reason.UNBATCHED)

    def lane(self, device: int) -> Lane:
        """The calling thread's lane of a device; the caller holds the lock."""
        self.check_process()
        return self.lanes.of_thread(device)

    def begin(self, lane: Lane) -> None:
        """Something is about to be recorded in a lane without operations; the caller holds the lock."""
        if self.error is not None:
            self.raise_pending()  # what follows would build on what a flush in the background could not do
        if lane not in self.lanes.busy:
            self.lanes.busy.append(lane)
        if self.clock.wants_arming():
            self.clock.arm(self.settings.delay_ms)

    def settle(self, lane: Lane, read: Sequence[int], written: Sequence[int]) -> None:
        """Submits what other threads recorded and what comes next depends on; the caller holds the lock."""
        for other in self.lanes.in_the_way(lane, read, written):
            self.flush_lane(other, flush_reason.ANOTHER_THREAD)

    def refuse(self, what: str, device: int | None = None) -> None:
        """Raises where a capture or a trace is underway, on a device or on any: ``what`` cannot be part of it."""
        capture = self.capture
        if capture is not None:
            capture.refuse(capture.device.index if device is None else device, what)

    def intake(self, device: int) -> Intake | None:
        """The capture or the trace underway on a device."""
        capture = self.capture
        return capture if capture is not None and capture.device.index == device else None

    def stream_words(self, state: RandomState, blocks: int, device: int) -> Sequence[int]:
        """The four parameters of a random stream (seed, offset) for an operation that uses ``blocks`` blocks of it."""
        intake = self.intake(device)
        if intake is not None:
            return intake.stream_words(state, blocks)
        seed, offset = state.reserve(blocks)
        return [half & 0xFFFFFFFF for number in (seed, offset) for half in (number, number >> 32)]

    @property
    def pending_count(self) -> int:
        """How many operations wait for a flush, of all threads and on all devices."""
        return sum(map(len, self.lanes.on(None)))

    def flush(self, cause: Cause, device: int | None = None, trailing: Trailing | None = None) -> None:
        """Submits what is pending (of one device, or of all) without waiting for it, and ``trailing`` after it."""
        with Uninterrupted(), self.lock:
            if self.is_forked:
                self.check_process()
            busy = self.lanes.busy
            if len(busy) == 1 and device in (None, busy[0].device):
                self._flush_whole(busy[0], cause, trailing)
                return
            lanes = self.lanes.on(device)
            for lane in lanes:
                self._flush_whole(lane, cause, trailing if lane is lanes[-1] else None)
            if not lanes:
                self.collect()
                self.sweep()

    def goes_on(self, lane: Lane) -> bool:
        """Whether what a lane holds was recorded before and went on, or ended when other tensors were alive."""
        with self.lock:
            held = tuple([op for op, _, _ in lane.entries])
            known = [plans for (device, *_), plans in self.plans.plans.items() if device == lane.device]
            keys = cast("Iterable[tuple[tuple[Operation, ...], ...]]", chain.from_iterable(known))
            again = [len(ops) for ops, *_ in keys if ops[: len(held)] == held]
            if not again or max(again) > len(held):
                return bool(again)
            self.collect()
            recording = Recording(lane.entries, self.mailbox.allocations, self.lanes.needed_beside(lane))
            return not any(recording.key in plans for plans in known)

    def flush_idle(self, lane: Lane, content: Content) -> None:
        """Submits what a lane holds, if that is still all; what goes wrong is raised at the next use."""
        try:
            with self.lock:
                # It may have been turned off meanwhile.
                if self.capture is None and self.settings.delay_ms > 0 and Content.of(lane) == content:
                    self.flush_lane(lane, flush_reason.IDLE)
        except Exception as error:
            self.error = self.error or error

    def flush_for(self, allocation: Allocation, trailing: Trailing, cause: Cause) -> None:
        """Submits what an allocation's contents may depend on, and the rest of what the calling thread recorded."""
        if self.is_forked:
            self.check_process()
        busy = self.lanes.busy
        if busy:
            device, number, thread = allocation.device, allocation.number, get_ident()
            if len(busy) == 1 and busy[0].thread == thread and busy[0].device == device:
                self._flush_whole(busy[0], cause, trailing)
                return
            lanes = [n for n in busy if n.device == device and (n.thread == thread or number in n.writes)]
            for lane in lanes:
                self._flush_whole(lane, cause, trailing if lane is lanes[-1] else None)

    def flush_lane(self, lane: Lane, cause: Cause) -> None:
        """Submits what one thread has recorded; the caller holds the lock."""
        with Uninterrupted():
            self._flush_whole(lane, cause, None)

    def _flush_whole(self, lane: Lane, cause: Cause, trailing: Trailing | None) -> None:
        index = lane.device
        device = self.devices[index] if index < FIRST_DESCRIBED else self.described[index]
        busy = self.lanes.busy
        if self.graphs.discarded:
            self.graphs.collect()
        Store.collect(self)  # not by the method above, nor by super(): both take longer than what there is to do
        try:
            if lane.entries:
                needed = NOTHING if len(busy) == 1 and busy[0] is lane else self.lanes.needed_beside(lane)
                recording = Recording(lane.take(), self.mailbox.allocations, needed)
                if len(self.dying) != recording.alive.count(False) or recording.lists:
                    # What died and this does not use gives back its memory, which this may take.
                    self.sweep(NOTHING if all(recording.alive) and not recording.lists else recording.in_use, needed)
                if self.prints_recordings:
                    print_recording(recording, device, cause)
                if self.capture is not None and self.capture.device is device:
                    self.capture.run(recording)
                elif device.observer is not None or profiler._is_profiler_enabled:
                    run_watched(device, recording, cause, self.plan_of)
                else:
                    cached = None if recording.lists else self.plans.look_up(recording, device, self.settings)
                    run(device, cached or self.plan_of(recording, device), recording, trailing)
                    self.backpressure.submitted(device)
        finally:
            if lane in busy:
                busy.remove(lane)
            if self.dying:
                self.sweep()

    def plan_of(self, recording: Recording, device: Device) -> CachedPlan:
        """How a recording runs. What it needs in memory has allocations from then on."""
        cached = self.plans.look_up(recording, device, self.settings)
        if recording.lists:
            for n in cached.lists:
                recording.lists[n].settle(self.mailbox)
            bury(self.dying)
        return cached

    @property
    def patterns(self) -> dict[str, Pattern]:
        """The chains that have a name."""
        return dict(self.plans.patterns)

    def set_pattern(self, name: str, pattern: Pattern | None) -> None:
        """See :meth:`PlanCache.set_pattern`. What was recorded before runs as it did."""
        with Uninterrupted(), self.lock:
            self.flush(flush_reason.SETTING)
            self.plans.set_pattern(name, pattern)

    def fusion_counts(self) -> FusionCounts:
        """What became of the operations so far."""
        return self.plans.counts()

    def new_pool_handle(self) -> PoolHandle:
        """A new name for a pool of graph memory."""
        return self.graphs.new_handle()

    def make_room(self, index: int, size_bytes: int) -> None:
        """Called before an upload takes memory: flushes if that gives back more than may be held."""
        too_much = self.backpressure.too_much_held(index, size_bytes, self.live_bytes[index])
        if too_much:
            self.reclaim()  # what has died and is still held afterwards waits for something recorded
            held = sum([a.buffer.size_bytes for a in self.dying if a.buffer is not None and a.device == index])
            if held >= too_much:
                self.flush(flush_reason.UPLOADS, index)

    def collect(self) -> None:
        """Also returns the memory of discarded graphs."""
        if self.graphs.discarded:
            self.graphs.collect()
        Store.collect(self)  # without super(), which takes longer than the rest of this

    def has_work(self, device: Device) -> bool:
        """Whether the device was given anything since it was last waited for."""
        return self._waited_for.get(device.index) != device.work

    def waited(self, device: Device) -> None:
        """Everything that was submitted to the device is done."""
        if self.readbacks.waiting.get(device.index):
            self.readbacks.finish(device)
        self.backpressure.done(device)
        self._waited_for[device.index] = device.work
        device.opened.encoder.note_idle()

    def raise_pending(self) -> None:
        """Raises the error of a flush that ran in the background, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error


_engine: Engine | None = None
_engine_lock = threading.Lock()
at_first_use: list[Callable[[], None]] = []
"""What is done when the device is first used: what programs that do not use it are to be spared."""


def engine() -> Engine:
    """The process's engine, made at the first use of the device."""
    global _engine
    if _engine is None:
        with _engine_lock:
            if _engine is None:
                _engine = Engine()
                for call in at_first_use:
                    call()
    return _engine


def stop() -> None:
    """At exit: see :meth:`Engine.stop`."""
    if _engine is not None:
        _engine.stop()


def started_in() -> int | None:
    """The process that made the engine; None while the device is unused."""
    return None if _engine is None else _engine.pid
