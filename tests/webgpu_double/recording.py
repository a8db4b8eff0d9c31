"""Encoders and passes: commands are checked when they are encoded, as real validation does, and run when submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.webgpu_double.objects import (
    COPY_DST,
    COPY_SRC,
    QUERY_RESOLVE,
    BindGroup,
    Buffer,
    HostMemory,
    Object,
    Offsets,
    Pipeline,
    QuerySet,
    rule,
)

if TYPE_CHECKING:
    from tests.webgpu_double.device import CheckedDevice

_RESOLVE_ALIGNMENT = 256


class Encoder(Object):
    """A command encoder: what its commands will do, and the buffers they name, which it holds."""

    def __init__(self, device: CheckedDevice) -> None:
        super().__init__(device)
        self.open_pass: Pass | None = None
        self.commands: list[Callable[[], object]] = []
        self.buffers: list[Buffer] = []

    def add(self, run: Callable[[], object], buffers: Sequence[Buffer]) -> None:
        """Encodes a command."""
        for buffer in buffers:
            buffer.hold()
        self.buffers += buffers
        self.commands.append(run)

    def let_go(self) -> None:
        """Its commands have run, or never will."""
        buffers, self.buffers = self.buffers, []
        for buffer in buffers:
            buffer.drop()

    def copy(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int) -> None:
        rule(self.open_pass is None, "a copy inside a pass")
        source.check_range(source_offset, size, COPY_SRC, "copy from")
        target.check_range(target_offset, size, COPY_DST, "copy to")
        rule(source is not target, f"a copy within {source}")

        def run() -> None:
            target.bytes[target_offset : target_offset + size] = source.bytes[source_offset : source_offset + size]

        self.add(run, (source, target))

    def clear(self, buffer: Buffer, offset: int, size: int) -> None:
        rule(self.open_pass is None, "a clear inside a pass")
        buffer.check_range(offset, size, COPY_DST, "clear")
        self.add(lambda: buffer.bytes[offset : offset + size].fill(0), (buffer,))

    def resolve(self, queries: QuerySet, first: int, size: int, buffer: Buffer, offset: int) -> None:
        rule(self.open_pass is None, "queries are resolved inside a pass")
        queries.check_range(first, size, "resolve")
        buffer.check_range(offset, 8 * size, QUERY_RESOLVE, "resolve to", _RESOLVE_ALIGNMENT)

        def run() -> None:
            ticks = queries.ticks[first : first + size]
            rule(None not in ticks, f"queries {first} to {first + size} of {queries} are resolved, not all written")
            buffer.bytes[offset : offset + 8 * size] = np.array(ticks, np.uint64).view(np.uint8)

        self.add(run, (buffer,))


class Pass(Object):
    """A compute pass."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder.device)
        rule(encoder.open_pass is None, f"a second pass begins in {encoder}")
        self.encoder = encoder
        encoder.open_pass = self
        self.ended = False
        self._pipeline: Pipeline | None = None
        self._group: BindGroup | None = None
        self._offset = 0
        self._immediates: bytes | None = None

    def set_pipeline(self, pipeline: Pipeline) -> None:
        rule(not self.ended, f"{self} has ended")
        self._pipeline = pipeline

    def set_bind_group(self, index: int, group: BindGroup, count: int, offsets: Any) -> None:
        rule(not self.ended, f"{self} has ended")
        rule(index == 0, f"bind group {index}: pipelines have group 0 only")
        dynamic = group.kinds.count("uniform")
        rule(count == dynamic, f"{count} dynamic offsets for {group}, which takes {dynamic}")
        rule(isinstance(offsets, Offsets) if count else offsets is self.device.null, f"{offsets!r} as dynamic offsets")
        self._group, self._offset = group, 0
        if count:
            (self._offset,) = offsets
            buffer, start, size = group.ranges[-1]
            alignment = self.device.adapter.limits["min-uniform-buffer-offset-alignment"]
            rule(self._offset % alignment == 0, f"dynamic offset {self._offset} is no multiple of {alignment}")
            rule(start + self._offset + size <= buffer.size_bytes, f"dynamic offset {self._offset} leaves {buffer}")

    def set_immediates(self, offset: int, data: Any, size: int) -> None:
        rule(not self.ended, f"{self} has ended")
        rule(isinstance(data, HostMemory), f"immediates from {data!r}")
        rule(offset == 0 and size % 4 == 0, f"immediates of {size} bytes at {offset}")
        rule(size <= len(data.view), f"{size} bytes of immediates from {len(data.view)}")
        rule(size <= self.device.adapter.limits["max-immediate-size"], f"{size} bytes of immediates")
        self._immediates = bytes(data.view[:size])

    def dispatch(self, grid: tuple[int, int, int]) -> None:
        rule(not self.ended, f"{self} has ended")
        pipeline, group = self._pipeline, self._group
        rule(pipeline is not None, "a dispatch without a pipeline")
        rule(group is not None, f"a dispatch of {pipeline} without a bind group")
        assert pipeline is not None
        assert group is not None
        rule(group.kinds == pipeline.kinds, f"{group} {group.kinds} does not fit {pipeline} {pipeline.kinds}")
        limit = self.device.adapter.limits["max-compute-workgroups-per-dimension"]
        rule(all(0 <= size <= limit for size in grid), f"{pipeline}: grid {grid} exceeds {limit}")
        params = b""
        if pipeline.immediate_bytes:
            params = self._immediates or b""
            rule(len(params) == pipeline.immediate_bytes, f"{pipeline}: {len(params)} bytes of immediates are set")
        run = self._run(pipeline, group, params, grid)
        self.encoder.add(run, [buffer for buffer, _, _ in group.ranges])

    def _run(
        self, pipeline: Pipeline, group: BindGroup, params: bytes, grid: tuple[int, int, int]
    ) -> Callable[[], None]:
        dynamic, compute = self._offset, self.device.implementation.kernels.get(pipeline.label)

        def run() -> None:
            parts = [buffer.bytes[offset : offset + size] for buffer, offset, size in group.ranges]
            given = params
            if group.kinds[-1:] == ("uniform",):
                buffer, start, size = group.ranges[-1]
                given = buffer.bytes[start + dynamic : start + dynamic + size].tobytes()
                parts.pop()
            for part, kind in zip(parts, group.kinds, strict=False):
                part.flags.writeable = kind == "read_write"
            if compute is not None and min(grid):
                compute(parts, given, grid)

        return run

    def end(self) -> None:
        rule(not self.ended, f"{self} ends twice")
        self.ended = True
        self.encoder.open_pass = None

    def gone(self) -> None:
        rule(self.ended, f"{self} is released before it ends")
