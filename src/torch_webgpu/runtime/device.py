"""One adapter as the rest of the package sees it: memory, submission, transfers, errors as exceptions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ParamSpec, TypeVar

import numpy as np

from torch_webgpu.errors import DeviceLostError, ForkError, OutOfMemoryError, WebGPUError
from torch_webgpu.wgsl.kernel import Kernel

from .adapter_target import target_of
from .buffers import Buffer, Exchange
from .captured_graph import EncodedGraph
from .commands import Command, Dispatch
from .implementation import Adapter, NativeDevice
from .observer import Observer, span
from .opened import Opened
from .prepared import Prepared
from .private_pool import PrivatePool
from .tally import Tally
from .timing import Stamp
from .transfer import HostMemory, Readback, Request

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class DeviceStats:
    """Counters of one device. ``reserved`` is what the adapter gave us: ``allocated`` (in use) plus ``pooled``."""

    allocated_bytes: int = 0
    peak_allocated_bytes: int = 0
    pooled_bytes: int = 0
    reserved_bytes: int = 0
    buffers: int = 0
    pooled_buffers: int = 0
    pipelines: int = 0
    bind_groups: int = 0
    submissions: int = 0
    failed_allocations: int = 0
    out_of_memory: int = 0


class Device:
    """A GPU. It is opened when it is first used; ``info``, ``features``, ``limits`` and ``target`` need no opening.

    Not thread-safe: callers hold one lock around all devices. Errors that the GPU reports late are raised by the next
    :meth:`submit`, :meth:`download` or :meth:`synchronize`.
    """

    def __init__(self, index: int, adapter: Adapter) -> None:
        self.index = index
        self.name: str = adapter.info["device"]
        self.info = adapter.info
        self.implementation = adapter.implementation.name
        self.features = adapter.features
        self.limits = adapter.limits
        self.target = target_of(adapter)
        self.adapter = adapter
        self.observer: Observer | None = None
        self.may_have_flags = False
        """Whether anything was submitted that may raise flags, since they were last read: for those who submit it."""
        self._failed_allocations = 0  # a retry after the pool was emptied followed
        self._out_of_memory = 0
        self._unusable: WebGPUError | None = None  # why nothing can be done any more
        self._former: list[NativeDevice] = []
        self.memory_fraction = 1.0
        self._memory_limit_bytes: int | None = None

    def __repr__(self) -> str:
        return f"<Device webgpu:{self.index} {self.name}>"

    @cached_property
    def _opened(self) -> Opened:
        opened = Opened(self.adapter, self.target)
        opened.pool.limit_bytes = self._memory_limit_bytes
        return opened

    @property
    def opened(self) -> Opened:
        """Its parts while it is open, for those who make many calls; opened now if it is not. Raises why it cannot be
        used. Errors that the adapter tells are the caller's to ask for (:meth:`raise_errors`).
        """
        if self._unusable is not None:
            raise copy(self._unusable)  # a raised one keeps the frames it went through, and their tensors
        opened = self._opened
        if opened.native.sink.lost is not None:
            self.raise_errors(opened)  # also of a use that would ask nothing of the adapter
        return opened

    @property
    def is_open(self) -> bool:
        return "_opened" in self.__dict__

    def limit_memory(self, fraction: float, total_bytes: int) -> None:
        """Has :meth:`allocate` raise OutOfMemoryError where more of the adapter's memory would be in use or pooled."""
        self.memory_fraction, self._memory_limit_bytes = fraction, int(fraction * total_bytes)
        if self.is_open:
            self._opened.pool.limit_bytes = self._memory_limit_bytes

    @property
    def error_buffer(self) -> Buffer:
        """64 bytes of u32 words, zero at first, in which kernels atomically raise flags."""
        return self.opened.error_buffer

    def allocate(self, size_bytes: int) -> Buffer:
        """A buffer of at least ``size_bytes`` with undefined contents. Raises torch.OutOfMemoryError with a summary.

        When the adapter has no memory left, pooled buffers are given back first: no commands that name one may wait for
        their submission.
        """
        opened = self.opened
        return self.with_room(opened.memory.allocate, size_bytes)

    def with_room(self, take: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """What ``take`` returns; when it finds no memory, once more after all pooled buffers were given back."""
        try:
            return take(*args, **kwargs)
        except OutOfMemoryError:
            self._failed_allocations += bool(self._opened.pool.pooled_bytes)
        self.empty_cache()
        try:
            return take(*args, **kwargs)
        except OutOfMemoryError:
            self._out_of_memory += 1
            raise

    def release(self, buffer: Buffer) -> None:
        """Takes a buffer back into the pool it came from. All work that uses it must have been submitted."""
        if self._unusable is None:
            self._opened.pool.give_back(buffer)

    def release_all(self, buffers: Sequence[Buffer]) -> None:
        """:meth:`release` of many buffers."""
        if self._unusable is None:
            self._opened.pool.give_back_all(buffers)

    def prepare(self, commands: Sequence[Command]) -> None:
        """Compiles what ``commands`` need and is not compiled yet, several kernels at a time."""
        self.opened.pipelines.prepare([command for command in commands if isinstance(command, Dispatch)])

    def submit(self, commands: Iterable[Command]) -> None:
        """Queues ``commands`` in order, without waiting. If one is refused, none of its submission runs."""
        if self.observer is not None:
            self.observer.submit(tuple(commands))
        else:
            self.submit_unobserved(commands)

    def submit_unobserved(self, commands: Iterable[Command]) -> None:
        """:meth:`submit`, whoever looks on."""
        opened = self.opened
        opened.encoder.submit(commands)
        self.raise_errors(opened)

    def prepare_again(self, key: Hashable, commands: Sequence[Command]) -> Prepared | None:
        """``commands`` with everything looked up, for :meth:`submit_prepared`; None where that cannot be done ahead.

        ``opened.prepared`` keeps it under that key as long as everything it names is there. Raises what :meth:`submit`
        would; nothing runs.
        """
        opened = self.opened
        made = opened.encoder.prepare(commands)
        if made is not None:
            opened.prepared[key] = made
        return made

    def submit_prepared(
        self, opened: Opened, prepared: Prepared, last: Callable[[], Iterable[Command]] | None = None
    ) -> None:
        """:meth:`submit` of what was prepared and is current, then of the transfers that ``last`` gives.

        Nobody observes the device: an observer is shown commands.
        """
        opened.encoder.submit_prepared(prepared, last)
        sink = opened.native.sink
        if sink.errors or sink.lost is not None:
            self.raise_errors(opened)

    def undo_exchange(
        self, steps: Sequence[Exchange], before: Sequence[Buffer | None], buffers: Sequence[Buffer | None]
    ) -> None:
        """Undoes an :meth:`exchange`, for work that was never submitted."""
        if self._unusable is None:
            self._opened.pool.undo_exchange(steps, before, buffers)

    def capacity(self, size_bytes: int) -> int:
        """The size of the buffer that :meth:`allocate` would give."""
        return self.opened.pool.capacity(size_bytes)

    # Captured graphs

    def private_pool(self) -> PrivatePool:
        """A new pool for captured graphs."""
        return PrivatePool(self.opened.pool)

    def has_pool(self, pool: PrivatePool) -> bool:
        """Whether the pool is of the device as it is open now."""
        return self._unusable is None and pool.is_part_of(self.opened.pool)

    def allocate_from(self, pool: PrivatePool | None) -> None:
        """Where :meth:`allocate` takes memory from now on: a capture's pool, or None for everybody's."""
        self.opened.memory = pool or self.opened.pool

    @staticmethod
    def pin(buffer: Buffer) -> None:
        """Keeps a buffer's memory from everybody else, beyond its release, until :meth:`unpin`."""
        buffer.pins += 1

    def unpin(self, buffer: Buffer) -> None:
        """Undoes a :meth:`pin`; a buffer that was released meanwhile goes back to its pool with the last one."""
        buffer.pins -= 1
        if buffer.released and not buffer.pins:
            buffer.released = False
            self.release(buffer)

    def encode_graph(self, commands: Sequence[Command]) -> EncodedGraph:
        """Prepares ``commands`` for :meth:`replay`; the caller's to release. Raises as :meth:`submit`; nothing runs."""
        opened = self.opened
        return EncodedGraph(opened.native, opened.pipelines, opened.encoder, self.limits, commands, opened.graphs)

    def replay(self, graph: EncodedGraph, commands: Sequence[Command] | None = None) -> None:
        """Queues a graph's commands, without waiting. DeviceLostError for one from before :meth:`reopen`.

        ``commands``: those of the graph as they are now, where an observer was told what they are part of.
        """
        opened = self.opened
        if not self.owns(graph):
            raise DeviceLostError(f"webgpu:{self.index} was reset, and this captured graph is lost with what it held")
        self.may_have_flags = True
        if self.observer is not None:
            self.observer.submit(graph.current() if commands is None else commands)
        else:
            graph.submit()
        self.raise_errors(opened)

    def owns(self, graph: EncodedGraph) -> bool:
        """Whether the graph is of the device as it is open now."""
        return self._unusable is None and graph.native is self._opened.native

    def compile(self, kernel: Kernel) -> None:
        """Compiles a kernel, which is at hand from then on. Raises ShaderCompileError with the numbered source."""
        opened = self.opened
        opened.pipelines.pipeline(kernel)
        self.raise_errors(opened)

    def upload(self, buffer: Buffer, offset_bytes: int, data: memoryview | bytes) -> None:
        """Copies contiguous host bytes into a buffer, after the work submitted so far and without waiting for it."""
        opened = self.opened
        with span(self, "upload"):
            opened.transfer.upload(buffer, offset_bytes, data)
        self.raise_errors(opened)

    def download(self, requests: Sequence[Request], into: Sequence[HostMemory] = ()) -> list[np.ndarray]:
        """Waits for the submitted work; the bytes of each ``(buffer, offset, nbytes)`` as a uint8 array.

        Those of the first requests are written ``into`` this memory instead.
        """
        opened = self.opened
        download = opened.transfer.download
        try:
            results = self._wait(opened, "download", download, requests, into)
        except OutOfMemoryError:
            self.empty_cache()
            results = self._wait(opened, "download", download, requests, into)
        self.raise_errors(opened)
        return results

    def begin_readbacks(self, request: Request, into: HostMemory) -> list[Readback]:
        """A :meth:`download` of any size, in parts whose copies the caller submits. Each ends with
        :meth:`finish_readback`; there may be any others before.
        """
        return self.opened.transfer.begin_apart(request, into)

    def finish_readback(self, readback: Readback) -> None:
        """Waits until a part of a download that was submitted is there."""
        opened = self.opened
        if self.observer is None and not opened.pipelines.first_runs:
            opened.transfer.finish(readback)
        else:
            self._wait(opened, "download", opened.transfer.finish, readback)
        sink = opened.native.sink
        if sink.errors or sink.lost is not None:
            self.raise_errors(opened)

    def _wait(
        self,
        opened: Opened,
        what: str,
        wait: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """What ``wait`` returns. Whoever looks on is told, and the log of what the wait may be long for."""
        news = opened.pipelines.waiting()
        if news is not None:
            with news:
                return self._wait(opened, what, wait, *args, **kwargs)
        if self.observer is not None:
            with self.observer.span("wait", what):
                return wait(*args, **kwargs)
        return wait(*args, **kwargs)

    def mark(self) -> Callable[[], bool]:
        """A function that tells, without waiting, whether nothing submitted until now is underway any more.

        It is done, or lost with the device. Uploads that wait for the next submission aside: submitting them alone
        would make some drivers wait.
        """
        opened = self.opened
        mark = opened.native.mark()

        def reached() -> bool:
            if mark.reached or self._unusable is not None or self.__dict__.get("_opened") is not opened:
                return True
            opened.native.poll(wait=False)
            return mark.reached or opened.native.sink.lost is not None

        return reached

    def synchronize(self) -> None:
        """Waits until all submitted work is done, and raises the errors it caused."""
        opened = self.opened
        opened.native.flush_writes()
        self._wait(opened, "synchronize", opened.native.poll, True)
        self.raise_errors(opened)

    @property
    def work(self) -> object:
        """Stands for everything submitted until now: another value means that there has been more."""
        native = self.opened.native
        return native, native.submissions

    @property
    def has_timestamps(self) -> bool:
        """Whether the adapter tells what time it is on the GPU."""
        return "timestamp-query" in self.features

    def stamp(self) -> Stamp:
        """Has the GPU note when everything submitted so far is done, without waiting. Needs timestamp-query."""
        opened = self._timing()
        stamp = opened.timer.now()
        self.raise_errors(opened)
        return stamp

    def submit_timed(self, commands: Sequence[Command]) -> list[Stamp]:
        """:meth:`submit` with a compute pass, and a stamp, for each dispatch. Needs timestamp-query."""
        opened = self._timing()
        stamps = opened.timer.submit(commands)
        self.raise_errors(opened)
        return stamps

    def read_stamps(self, stamps: Sequence[Stamp]) -> list[tuple[int, int]]:
        """Waits; the (begin, end) of each stamp in nanoseconds of the GPU's clock."""
        opened = self._timing()
        times_ns = opened.timer.read(stamps)
        self.raise_errors(opened)
        return times_ns

    def submit_waiting(self, commands: Sequence[Command]) -> list[tuple[int, int]]:
        """Submits one by one, waiting for each: (begin, end) of each dispatch in ns of the host's clock."""
        opened = self.opened
        times_ns = opened.timer.submit_waiting(commands)
        self.raise_errors(opened)
        return times_ns

    def _timing(self) -> Opened:
        if not self.has_timestamps:
            raise WebGPUError(f"{self.name} has no timestamp queries")
        return self.opened

    def time(self, commands: Sequence[Command]) -> list[int]:
        """Runs dispatches one by one; how long each took on the GPU, in nanoseconds. Needs timestamp-query."""
        opened = self._timing()
        durations_ns = opened.timer.time(commands)
        self.raise_errors(opened)
        return durations_ns

    def empty_cache(self) -> None:
        """Gives pooled memory, staging memory and their bind groups back to the adapter, which waits for their work."""
        if self._unusable is None and self.is_open:
            self._opened.pool.empty()
            self._opened.imported.retire()
            self._opened.transfer.release_staging()
            self._opened.native.poll(wait=True)

    @property
    def submissions(self) -> int:
        """How often commands were submitted."""
        opened = self.__dict__.get("_opened")
        return 0 if opened is None else opened.encoder.submissions

    @property
    def stats(self) -> DeviceStats:
        """Counters of memory and cached objects; all zero before the device is opened."""
        if not self.is_open:
            return DeviceStats()
        pool, pipelines = self._opened.pool, self._opened.pipelines
        return DeviceStats(
            allocated_bytes=pool.allocated_bytes,
            peak_allocated_bytes=pool.peak_allocated_bytes,
            pooled_bytes=pool.pooled_bytes,
            reserved_bytes=pool.reserved_bytes,
            buffers=pool.live_buffers,
            pooled_buffers=pool.pooled_buffers,
            pipelines=pipelines.pipeline_count,
            bind_groups=pipelines.bind_group_count,
            submissions=self._opened.encoder.submissions,
            failed_allocations=self._failed_allocations,
            out_of_memory=self._out_of_memory,
        )

    def memory_tallies(self) -> dict[str, Tally]:
        """Buffers in use and what the adapter gave us, in number and bytes, under torch.cuda's names."""
        if not self.is_open:
            return {name: Tally() for name in ("active", "active_bytes", "segment", "reserved_bytes")}
        pool = self._opened.pool
        number, size = pool.in_use()
        segments, reserved = replace(pool.created), replace(pool.reserved)
        return {"active": number, "active_bytes": size, "segment": segments, "reserved_bytes": reserved}

    @property
    def free_sizes(self) -> list[int]:
        """The size in bytes of every buffer that is kept for reuse."""
        return self._opened.pool.free_sizes if self.is_open else []

    def reset_peak_stats(self) -> None:
        """Starts ``peak_allocated_bytes`` again from what is in use now."""
        if self.is_open:
            self._opened.pool.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        """What was allocated, freed and failed so far is forgotten."""
        self._failed_allocations = self._out_of_memory = 0
        if self.is_open:
            self._opened.pool.reset_accumulated()

    def memory_summary(self) -> str:
        """What memory is in use, for people."""
        head = f"webgpu:{self.index} {self.name}"
        return f"{head}\n{self._opened.pool.summary()}" if self.is_open else f"{head}\n  not opened"

    def disable(self, reason: WebGPUError) -> None:
        """From now on every use raises ``reason``."""
        self._unusable = self._unusable or reason

    def finish(self) -> None:
        """Waits for the GPU, whatever came of its work. For the end of the process."""
        if self._unusable is None and self.is_open:
            self._opened.native.poll(wait=True)

    def close(self, reason: WebGPUError | None = None) -> None:
        """Waits for the GPU, if it is not lost, and gives everything back. Every use raises ``reason`` from then on."""
        usable = self._unusable is None
        # First: another thread may be about to submit, and a submission to a closed device ends the process.
        self.disable(reason or DeviceLostError(f"webgpu:{self.index} was closed"))
        opened: Opened | None = self.__dict__.get("_opened")
        if opened is None or isinstance(self._unusable, ForkError):
            return
        if usable:
            opened.native.poll(wait=True)
        opened.close()
        del self._opened
        self._former.append(opened.native)  # the library may still call back into it

    def reopen(self) -> None:
        """Opens the device anew, also after it was lost. Its old buffers are gone and must not be released."""
        if isinstance(self._unusable, ForkError):
            raise self._unusable
        self.close()
        self._unusable = None

    def raise_errors(self, opened: Opened) -> None:
        """Raises what the adapter told since the last call."""
        sink = opened.native.sink
        if sink.lost is None and not sink.errors:
            return
        if sink.loss:
            self.disable(DeviceLostError(f"webgpu:{self.index} ({self.name}) was lost: {sink.loss}"))
        elif sink.errors:
            errors = sink.take()
            text = "\n".join(message for _, message in errors)
            if any(kind == "out of memory" for kind, _ in errors):
                raise OutOfMemoryError(f"WebGPU out of memory. {text}\n{self.memory_summary()}")
            raise WebGPUError(text)
        if self._unusable is not None:
            raise copy(self._unusable)


FORKED = ForkError(
    "the webgpu device cannot be used in a forked process: GPU handles do not survive os.fork(). "
    "Start the process with the 'spawn' or 'forkserver' method (torch.multiprocessing.set_start_method('spawn'))"
)
