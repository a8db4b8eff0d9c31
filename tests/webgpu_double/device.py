"""The device: every call of the seam, checked, and a queue that runs its commands when they are submitted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from tests.webgpu_double.objects import (
    COPY_DST,
    COPY_SRC,
    MAP_READ,
    MAP_WRITE,
    BindGroup,
    Buffer,
    HostMemory,
    Layout,
    Object,
    Offsets,
    Pipeline,
    QuerySet,
    Shader,
    rule,
)
from tests.webgpu_double.recording import Encoder, Pass

from torch_webgpu.runtime.implementation import Adapter, ErrorSink, Mark

if TYPE_CHECKING:
    from tests.webgpu_double.implementation import CheckedWebGPU

LOST = "Parent device is lost"
TICKS = 100  # that a pass takes
PERIOD_NS = 10.0

Kind = TypeVar("Kind", bound=Object)


class CheckedDevice:
    """A ``NativeDevice``. ``alive``: what was made and not released; ``memory_bytes``: what its buffers take."""

    def __init__(self, implementation: CheckedWebGPU, adapter: Adapter) -> None:
        self.implementation, self.adapter = implementation, adapter
        self.sink = ErrorSink()
        self.submissions = 0
        self.null = object()
        self.alive: set[Object] = set()
        self.memory_bytes = 0
        self.lost = False
        self.closed = False
        self._thread: int | None = None
        self._runs = 0
        self._polls = 0
        self._writes: list[tuple[Buffer, int, bytes]] = []
        self._underway: deque[tuple[int, Callable[[], None]]] = deque()  # the poll that finds it done, what follows
        self._ticks = 0

    @property
    def _faults(self) -> Any:
        return self.implementation.faults

    def _open(self, call: str) -> None:
        rule(not self.closed, f"{call} after the device was closed")

    def _take(self, kind: type[Kind], handle: Any, call: str) -> Kind:
        """The object of a handle that a call is given, if it may be."""
        self._open(call)
        rule(type(handle) is kind, f"{call}: {handle!r} is no {kind.__name__}")
        rule(handle.device is self, f"{call}: {handle} is another device's")
        rule(handle.references, f"{call}: {handle} was released")
        rule(handle.valid or self.lost, f"{call}: {handle} was refused, and may only be released")
        return handle

    def _made(self, made: Kind, refusal: tuple[str, str] | None = None) -> Kind:
        """What a call returns; invalid, with word of it, when it is refused or the device is lost."""
        if self.lost:
            refusal = ("validation", LOST)
        if refusal is not None:
            made.valid = False
            self.sink.errors.append(refusal)
        return made

    # Buffers

    def host_memory(self, data: bytes | bytearray) -> HostMemory:
        return HostMemory(data)

    def offsets(self, count: int) -> Offsets:
        return Offsets([0] * count)

    def create_buffer(self, size_bytes: int, usage: int) -> Buffer:
        self._open("create_buffer")
        most = self.adapter.limits["max-buffer-size"]
        rule(0 < size_bytes <= most and size_bytes % 4 == 0, f"a buffer of {size_bytes} bytes, of at most {most}")
        rule(usage & ~MAP_READ & ~COPY_DST == 0 or not usage & MAP_READ, f"usages {usage:#x} beside map-read")
        rule(usage & ~MAP_WRITE & ~COPY_SRC == 0 or not usage & MAP_WRITE, f"usages {usage:#x} beside map-write")
        limit = self._faults.memory_bytes
        if limit is not None and self.memory_bytes + size_bytes > limit:
            return self._made(Buffer(self, size_bytes, usage), ("out of memory", "Not enough memory left."))
        buffer = self._made(Buffer(self, size_bytes, usage))
        if buffer.valid:
            buffer.fill()
        return buffer

    def write_buffer(self, buffer: Any, offset: int, data: Any) -> None:
        buffer = self._take(Buffer, buffer, "write_buffer")
        raw = bytes(memoryview(data).cast("B"))
        buffer.check_range(offset, len(raw), COPY_DST, "write_buffer")
        if not self.lost:
            buffer.hold()
            self._writes.append((buffer, offset, raw))

    def map(self, buffer: Any, size_bytes: int) -> memoryview | None:
        return self._map(buffer, size_bytes, MAP_READ)

    def map_to_write(self, buffer: Any, size_bytes: int) -> memoryview | None:
        return self._map(buffer, size_bytes, MAP_WRITE)

    def _map(self, buffer: Any, size_bytes: int, usage: int) -> memoryview | None:
        buffer = self._take(Buffer, buffer, "map")
        buffer.check_range(0, size_bytes, usage, "map")
        rule(size_bytes, "nothing is mapped")
        rule(buffer.mapped is None, f"{buffer} is mapped already")
        self.poll(wait=True)
        if self.lost:
            self.sink.errors.append(("internal", f"mapping a staging buffer failed: {LOST}"))
            return None
        buffer.mapped = memoryview(bytearray(buffer.bytes[:size_bytes]))
        return buffer.mapped

    def unmap(self, buffer: Any) -> None:
        buffer = self._take(Buffer, buffer, "unmap")
        rule(buffer.mapped is not None, f"{buffer} is not mapped")
        try:
            host = buffer.mapped.obj
            if buffer.usage & MAP_WRITE:
                buffer.bytes[: len(host)] = np.frombuffer(bytes(host), np.uint8)
            buffer.mapped.release()
            host.clear()  # cannot shrink while somebody looks at it
        except BufferError:
            rule(False, f"something still looks at the mapped memory of {buffer}")
        buffer.mapped = None

    def release_buffer(self, handle: Any) -> None:
        self._release(Buffer, handle)

    # Pipelines

    def create_shader(self, source: str, label: str, trusted: bool) -> Shader:
        self._open("create_shader")
        refused = label in self._faults.refused
        return self._made(Shader(self, source, label), ("validation", f"{label} is refused") if refused else None)

    def release_shader(self, handle: Any) -> None:
        self._release(Shader, handle)

    def create_layout(self, writable: Sequence[bool], uniform: bool) -> Layout:
        self._open("create_layout")
        return self._made(Layout(self, writable, uniform))

    def release_layout(self, handle: Any) -> None:
        self._release(Layout, handle)

    def create_pipeline(self, shader: Any, layout: Any, immediate_bytes: int, label: str) -> Pipeline:
        rule(type(shader) is Shader and shader.references, f"create_pipeline of {shader!r}")
        layout = self._take(Layout, layout, "create_pipeline")
        made = Pipeline(self, shader, layout, immediate_bytes, label)
        return self._made(made, None if shader.valid else ("validation", f"{shader} is invalid"))

    def retain_pipeline(self, handle: Any) -> None:
        self._take(Pipeline, handle, "retain_pipeline").references += 1

    def release_pipeline(self, handle: Any) -> None:
        self._release(Pipeline, handle)

    def create_bind_group(self, layout: Any, ranges: Sequence[tuple[Any, int, int]]) -> BindGroup:
        layout = self._take(Layout, layout, "create_bind_group")
        taken = [(self._take(Buffer, handle, "create_bind_group"), offset, size) for handle, offset, size in ranges]
        return self._made(BindGroup(self, layout, taken))

    def release_bind_group(self, handle: Any) -> None:
        self._release(BindGroup, handle)

    # Commands

    def create_encoder(self) -> Encoder:
        self._open("create_encoder")
        return self._made(Encoder(self))

    def release_encoder(self, handle: Any) -> None:
        self._release(Encoder, handle)
        rule(handle.open_pass is None, f"{handle} is released while a pass is open")
        handle.let_go()

    def begin_pass(self, encoder: Any) -> Pass:
        return self._made(Pass(self._take(Encoder, encoder, "begin_pass")))

    def begin_timed_pass(self, encoder: Any, *, query_set: Any, first_query: int) -> Pass:
        queries = self._take(QuerySet, query_set, "begin_timed_pass")
        queries.check_range(first_query, 2, "begin_timed_pass")
        made = self.begin_pass(encoder)

        def run() -> None:
            queries.ticks[first_query : first_query + 2] = self._ticks, self._ticks + TICKS
            self._ticks += 2 * TICKS

        made.encoder.add(run, ())
        return made

    def set_pipeline(self, compute: Any, pipeline: Any) -> None:
        self._take(Pass, compute, "set_pipeline").set_pipeline(self._take(Pipeline, pipeline, "set_pipeline"))

    def set_bind_group(self, compute: Any, index: int, group: Any, count: int, offsets: Any) -> None:
        group = self._take(BindGroup, group, "set_bind_group")
        self._take(Pass, compute, "set_bind_group").set_bind_group(index, group, count, offsets)

    def set_immediates(self, compute: Any, offset: int, data: Any, size: int) -> None:
        self._take(Pass, compute, "set_immediates").set_immediates(offset, data, size)

    def dispatch_workgroups(self, compute: Any, x: int, y: int, z: int) -> None:
        self._take(Pass, compute, "dispatch_workgroups").dispatch((x, y, z))

    def end_pass(self, compute: Any) -> None:
        self._take(Pass, compute, "end_pass").end()

    def release_pass(self, handle: Any) -> None:
        self._release(Pass, handle)

    def copy_buffer(self, encoder: Any, source: Any, start: int, target: Any, offset: int, size: int) -> None:
        buffers = [self._take(Buffer, handle, "copy_buffer") for handle in (source, target)]
        self._take(Encoder, encoder, "copy_buffer").copy(buffers[0], start, buffers[1], offset, size)

    def clear_buffer(self, encoder: Any, buffer: Any, offset: int, size: int) -> None:
        buffer = self._take(Buffer, buffer, "clear_buffer")
        self._take(Encoder, encoder, "clear_buffer").clear(buffer, offset, size)

    def create_timestamps(self, count: int) -> QuerySet:
        self._open("create_timestamps")
        return self._made(QuerySet(self, count))

    def release_timestamps(self, handle: Any) -> None:
        self._release(QuerySet, handle)

    def timestamp_period_ns(self) -> float:
        self._open("timestamp_period_ns")
        return PERIOD_NS

    def resolve_query_set(self, encoder: Any, queries: Any, first: int, size: int, buffer: Any, offset: int) -> None:
        queries, buffer = self._take(QuerySet, queries, "resolve"), self._take(Buffer, buffer, "resolve")
        self._take(Encoder, encoder, "resolve").resolve(queries, first, size, buffer, offset)

    def _release(self, kind: type[Object], handle: Any) -> None:
        self._open(f"the release of {handle!r}")
        rule(type(handle) is kind and handle.device is self, f"{handle!r} is released as {kind.__name__}")
        handle.release()

    # The queue

    def run(self, encoder: Any) -> bool:
        encoder = self._take(Encoder, encoder, "run")
        rule(encoder.open_pass is None, f"{encoder} is submitted while a pass is open")
        rule(self._thread in (None, get_ident()), "two threads submit at the same time")
        self._thread = get_ident()
        try:
            encoder.release()
            self._runs += 1
            if self._runs == self._faults.lose_at:
                self._lose()
            if self.sink.errors or self.sink.lost is not None or self.lost:
                encoder.let_go()
                return False
            self._run(encoder)
        finally:
            self._thread = None
        return True

    def _run(self, encoder: Encoder) -> None:
        self._write()
        for buffer in encoder.buffers:
            rule(buffer.mapped is None, f"{buffer} is mapped, and named by a submission")
        for command in encoder.commands:
            command()
        self.submissions += 1
        self._after_submitted(encoder.let_go)

    def _write(self) -> None:
        writes, self._writes = self._writes, []
        for buffer, offset, raw in writes:
            rule(buffer.mapped is None, f"{buffer} is mapped, and written to")
            buffer.bytes[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
            buffer.drop()

    def _after_submitted(self, call: Callable[[], None]) -> None:
        self._underway.append((self._polls + 1 + self._faults.late_polls, call))

    def flush_writes(self) -> bool:
        return self.run(self.create_encoder())

    def poll(self, wait: bool) -> None:
        self._open("poll")
        self._polls += 1
        while self._underway and (wait or self._underway[0][0] <= self._polls):
            self._underway.popleft()[1]()

    def mark(self) -> Mark:
        self._open("mark")
        mark = Mark()

        def reach() -> None:
            mark.reached = True

        self._after_submitted(reach)
        return mark

    def _lose(self) -> None:
        self.lost = True
        if self._faults.loss_told == "callback":
            self.sink.lost = "the driver was reset"
        else:
            self.sink.errors.append(("validation", LOST))

    def destroy(self) -> None:
        self._open("destroy")
        self.lost = True
        self.sink.lost = self.sink.lost or "it was destroyed"

    def close(self) -> None:
        """Also: everything was released, but for what a lost device refused to make."""
        self.destroy()
        self.poll(wait=True)
        for buffer, _, _ in self._writes:
            buffer.drop()
        self.closed = True
        left = sorted((one for one in self.alive if not one.of_lost_device), key=lambda one: one.number)
        rule(not left, f"{len(left)} objects are left at the close: {left[:8]}")
