"""``torch.webgpu.profile``: where the time goes, on the GPU and on the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from torch_webgpu.engine.flush_reason import PROFILE
from torch_webgpu.engine.interrupt import Uninterrupted
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.names import operator_name
from torch_webgpu.plan import Label
from torch_webgpu.runtime.commands import Command, Dispatch

from . import host_costs
from . import profile_report as report
from .host_clock import HostClock, HostEvent, HostObserver
from .profile_collectives import CollectiveEvent
from .profile_report import KernelEvent, KernelStats

if TYPE_CHECKING:
    from torch_webgpu.distributed.timeline import Timeline
    from torch_webgpu.runtime.device import Device
    from torch_webgpu.runtime.timing import Stamp

MAX_UNREAD = 1 << 15
"""Dispatches whose times wait on the GPU. More than that make the profile wait for it and read them."""
CALIBRATIONS = 3

_running: profile | None = None


class _Watch(HostObserver):
    """Times what one device is given."""

    device: Device

    def __init__(self, device: Device, clock: HostClock) -> None:
        super().__init__(device, clock)
        self._known: dict[int, tuple[Command, str, int]] = {}  # by id: the command, its operation, its bytes
        self._unread: list[tuple[Stamp, KernelEvent, int]] = []  # events without times, when they were submitted
        self._read: list[tuple[KernelEvent, int, int, int]] = []  # begin and end by the GPU's clock; the submission
        self._offset_ns: int | None = None  # what the host's clock is ahead of the GPU's

    def encoded(self, label: Label, command: Command) -> None:
        self._known[id(command)] = (command, operator_name(label.operation), label.size_bytes)
        super().encoded(label, command)

    @contextmanager
    def span(self, kind: str, detail: str = "") -> Iterator[None]:
        with super().span(kind, detail):
            yield
        if kind == "flush":
            self._known.clear()

    def submit(self, commands: Sequence[Command]) -> None:
        events = [self._event(command) for command in commands if isinstance(command, Dispatch)]
        if self.device.has_timestamps:
            self._calibrate()
            submitted_ns = time.perf_counter_ns()
            with self.span("submit", f"{len(events)} dispatches"):
                stamps = self.device.submit_timed(commands)
            self._unread += [(stamp, event, submitted_ns) for stamp, event in zip(stamps, events, strict=True)]
            if len(self._unread) > MAX_UNREAD:
                self._read_stamps()
        else:
            with self.span("submit", f"{len(events)} dispatches, waiting for each"):
                times_ns = self.device.submit_waiting(commands)
            self._offset_ns = 0
            self._read += [(event, *at, at[0]) for event, at in zip(events, times_ns, strict=True)]

    def _event(self, command: Dispatch) -> KernelEvent:
        kernel = command.kernel
        known = self._known.get(id(command))
        if known is not None:
            _, operation, size = known
        else:  # of a copy, or of a plan without labels
            operation, size = operator_name(kernel.name), sum([buffer.size_bytes for buffer in command.buffers])
        return KernelEvent(
            operator_name(kernel.name),
            operation,
            self.device.index,
            0.0,
            0.0,
            size,
            command.grid,
            kernel.workgroup_size,
        )

    def _calibrate(self) -> None:
        """Finds out, once, how far the clocks are apart: what is stamped and read at once happened in between."""
        if self._offset_ns is not None:
            return
        tries = []
        for _ in range(CALIBRATIONS):
            before_ns = time.perf_counter_ns()
            ((stamped_ns, _),) = self.device.read_stamps([self.device.stamp()])
            after_ns = time.perf_counter_ns()
            tries.append((after_ns - before_ns, (before_ns + after_ns) // 2 - stamped_ns))
        self._offset_ns = min(tries)[1]

    def _read_stamps(self) -> None:
        times_ns = self.device.read_stamps([stamp for stamp, _, _ in self._unread])
        self._read += [(event, *at, when) for (_, event, when), at in zip(self._unread, times_ns, strict=True)]
        self._unread = []

    def finish(self) -> list[KernelEvent]:
        """Waits for the GPU; all events with their times."""
        if self._unread:
            self._read_stamps()
        if self._offset_ns is None:
            return []
        # Nothing begins before it is submitted: that bounds what the calibration missed.
        offset_ns = max([self._offset_ns, *(submitted - begin for _, begin, _, submitted in self._read)])
        return [
            replace(event, start_us=self.clock.us(begin + offset_ns), duration_us=max(end - begin, 0) / 1e3)
            for event, begin, end, _ in self._read
        ]


class _OpRecorder(TorchDispatchMode):
    """Spans around every operator that reaches a device."""

    def __init__(self, clock: HostClock) -> None:
        super().__init__()
        self._clock = clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self._clock.span("record", str(func)):
            return func(*args, **(kwargs or {}))


class profile:  # noqa: N801 torch.profiler's name
    """Context manager that measures what happens inside: ``with torch.webgpu.profile() as p: …; print(p.table())``.

    Every kernel runs in a compute pass of its own, with the GPU's clock read before and after (timestamp queries);
    results are the same as without. Entering and leaving wait for the GPU. An adapter without timestamp queries is
    waited for after every kernel, and times are the host's: :attr:`has_timestamps` and the table say so.

    ``record_ops``: also measures every operator call on the host, by a ``TorchDispatchMode``, which itself takes time.

    After it: :attr:`events` (:class:`KernelEvent`, a dispatch each), :attr:`host_events`, :attr:`collectives`
    (:class:`CollectiveEvent`, those that were called inside), :attr:`total_gpu_time_us`, :attr:`wall_time_us`,
    :attr:`host_time_us` (microseconds by kind, each without what lies inside it, for the thread that was profiled),
    :meth:`table`, :meth:`host_table`, :meth:`export_chrome_trace`, :meth:`plot`. One profile can run at a time.

    Bytes are what the tensors that a kernel reads and writes hold, each counted once: a matrix product that reads a
    tile twice moves more, a look-up in a table that touches a few rows less. Bandwidth is bytes over the kernel's time.
    """

    def __init__(self, *, record_ops: bool = False) -> None:
        self.record_ops = record_ops
        self.events: list[KernelEvent] = []
        self.host_events: list[HostEvent] = []
        self.collectives: list[CollectiveEvent] = []
        self._timelines: list[Timeline] = []
        self.wall_time_us = 0.0
        self.has_timestamps = True
        self._names: dict[int, str] = {}
        self._watches: list[_Watch] = []
        self._clock: HostClock | None = None
        self._thread = 0
        self._mode = ExitStack()

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to measure. Raises RuntimeError while another profile does."""
        from torch_webgpu.distributed import timeline  # which a program without process groups does not need

        global _running
        eng = engine()
        with Uninterrupted(), eng.lock:
            if _running is not None:
                raise RuntimeError("a torch.webgpu.profile is already running")
            eng.refuse("a profile cannot begin")
            eng.flush(PROFILE)
            for device in eng.devices:
                if device.is_open:
                    device.synchronize()
            self._host_events: list[HostEvent] = []
            self._clock = HostClock(self._host_events.append)
            self._thread = threading.get_ident()
            self._watches = [_Watch(device, self._clock) for device in eng.devices]
            for watch in self._watches:
                watch.install()
            self._timelines = []
            timeline.watch(self._timelines.append)
            _running = self
        if self.record_ops:
            self._mode.enter_context(_OpRecorder(self._clock))

    def stop(self) -> None:
        """Submits what is recorded, waits for it, and ends the measurement. Raises what went wrong in it."""
        from torch_webgpu.distributed import timeline

        global _running
        if _running is not self or self._clock is None:
            raise RuntimeError("this torch.webgpu.profile is not running")
        eng, clock = engine(), self._clock
        self._mode.close()
        with Uninterrupted(), eng.lock:
            try:
                eng.flush(PROFILE)
            finally:
                for watch in self._watches:
                    watch.remove()
                timeline.unwatch(self._timelines.append)
                _running = None
                with clock.span("wait", "for the end of the profile"):
                    self.events = sorted(
                        (event for watch in self._watches for event in watch.finish()), key=lambda event: event.start_us
                    )
                self.wall_time_us = clock.us(time.perf_counter_ns())
                self.host_events = sorted(self._host_events, key=lambda event: event.start_us)
                used = {event.device for event in self.events}
                self._names = {index: eng.devices[index].name for index in sorted(used)}
                self.has_timestamps = all(eng.devices[index].has_timestamps for index in used)
                self._watches = []
        self.collectives = [CollectiveEvent.of(one, clock.start_ns) for one in self._timelines]

    @property
    def total_gpu_time_us(self) -> float:
        """The kernels' times, summed."""
        return sum(event.duration_us for event in self.events)

    @property
    def host_time_us(self) -> dict[str, float]:
        """Microseconds by kind, in the thread that was profiled. They sum up to the wall time."""
        own = [event for event in self.host_events if event.thread == self._thread]
        times: dict[str, float] = {}
        for event in own:
            times[event.kind] = times.get(event.kind, 0.0) + event.self_us
        return {"python": self.wall_time_us - sum(times.values()), **times}

    def key_averages(self, sort_by: str = "gpu_time_total") -> list[KernelStats]:
        """The events by kernel and operation."""
        return report.group(self.events, sort_by)

    def table(self, sort_by: str = "gpu_time_total", row_limit: int = 100) -> str:
        """The kernels as text. ``sort_by``: gpu_time_total, gpu_time_avg, count, bytes, bandwidth or name.

        torch.profiler's spellings (``cuda_time_total``, ``device_time_total``, …) mean ``gpu_time_total``. A negative
        ``row_limit`` shows all rows. Raises ValueError for another ``sort_by``.
        """
        clock = "Measured by timestamp queries."
        if not self.has_timestamps:
            clock = "MEASURED ON THE HOST, submission and waiting included: the adapter has no timestamp queries."
        times = self.host_time_us, self.wall_time_us
        return report.table(self.key_averages(sort_by), row_limit, *times, clock, self.collectives)

    def host_table(self, row_limit: int = 20) -> str:
        """What made the host late, as text: flushes, plans made, uploads, waits and fallbacks, by the line of the
        program that brought them about; those that took longest first. A negative ``row_limit`` shows all rows.
        """
        return host_costs.table(host_costs.group(self.host_events), row_limit)

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Writes JSON for chrome://tracing or https://ui.perfetto.dev: host threads, GPUs, collectives."""
        report.write_chrome_trace(path, self.events, self.host_events, self._names, self.collectives)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws the kernels and the timeline into an image file. Needs matplotlib."""
        report.draw(path, self.key_averages(), self.events, self.host_events, self.collectives)

    def __repr__(self) -> str:
        if _running is self:
            return "<torch.webgpu.profile, running>"
        return (
            f"<torch.webgpu.profile: {len(self.events)} dispatches, {self.total_gpu_time_us / 1e3:.3f} ms on the GPU>"
        )
