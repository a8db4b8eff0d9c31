"""A captured graph as the GPU sees it: commands with everything looked up, to be encoded again and again.

A replay encodes its commands anew and does nothing else: pipelines, bind groups, parameters and grids lie ready in flat
tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_webgpu.errors import OutOfMemoryError

from .calls import Assembler, padded_bytes
from .commands import Command, Dispatch
from .implementation import UNIFORM
from .pipelines import Bound
from .prepared import PARTS, parted

if TYPE_CHECKING:
    from .buffers import Buffer
    from .encoder import Encoder
    from .implementation import NativeDevice
    from .pipelines import Pipeline, PipelineCache, Range

COMMANDS_PER_SUBMISSION = 512
"""The GPU starts on the first of these while the host encodes the next."""


class EncodedGraph:
    """Commands ready to be submitted any number of times.

    It owns its bind groups and holds its pipelines, whatever the pipeline cache evicts; the buffers are the caller's to
    keep. Parameters may be changed between submissions, through :meth:`parameter`. It is in ``living`` until released.
    """

    def __init__(
        self,
        native: NativeDevice,
        pipelines: PipelineCache,
        encoder: Encoder,
        limits: dict[str, int],
        commands: Sequence[Command],
        living: set[EncodedGraph],
    ) -> None:
        self.native = native
        self._living = living
        self.commands = tuple(commands)
        self._pipelines = pipelines
        self._encoder = encoder
        self._held: list[Any] = []  # pipelines
        self._bound: dict[tuple[str, tuple[Buffer, ...]], Bound] = {}
        self._uniform: Any = None
        self._uniform_changes = False
        living.add(self)
        try:
            self._prepare(limits)
        except BaseException:
            self.release()
            raise

    @property
    def dispatches(self) -> int:
        """How many there are."""
        return sum(isinstance(command, Dispatch) for command in self.commands)

    def parameter(self, command: int, byte: int) -> tuple[bytearray | memoryview, int]:
        """Where that byte of a dispatch's parameters lies: what is written there holds from the next submission on."""
        data = self._params[command]
        assert data is not None
        self._uniform_changes = self._uniform_changes or isinstance(data, memoryview)
        return data, byte

    def current(self) -> list[Command]:
        """The commands with the parameters they have now."""
        return [
            command._replace(params=bytes(params)) if isinstance(command, Dispatch) and params is not None else command
            for command, params in zip(self.commands, self._params, strict=True)
        ]

    # Preparing

    def _prepare(self, limits: dict[str, int]) -> None:
        fits = [self._fit(command) for command in self.commands if isinstance(command, Dispatch)]
        if any(pipeline.param_bytes and not pipeline.uses_immediates for pipeline, _ in fits):
            self._uniform = self._uniform_buffer(limits, [pipeline.param_bytes for pipeline, _ in fits])
        unbound = iter(fits)

        def look_up(dispatch: Dispatch) -> Bound:
            pipeline, ranges = next(unbound)
            key = dispatch.kernel.key, dispatch.buffers
            bound = self._bound.get(key)
            if bound is None:
                group = self._pipelines.group(dispatch.kernel, pipeline, ranges, self._uniform)
                bound = Bound(pipeline.handle, group, pipeline.uses_immediates, pipeline.param_bytes)
                self._bound[key] = bound
            return bound

        assembler = Assembler(self.native, look_up, limits)
        starts = range(0, len(self.commands), COMMANDS_PER_SUBMISSION)
        parts = [self.commands[start : start + COMMANDS_PER_SUBMISSION] for start in starts]
        self._submissions = [assembler.assemble(part) for part in parts]
        self._soon = [*parted(self._submissions[0], PARTS), *self._submissions[1:]] if parts else []
        self._params, self._uniform_data = assembler.params, assembler.uniform
        if self._uniform_data:
            self.native.write_buffer(self._uniform, 0, self._uniform_data)

    def _fit(self, dispatch: Dispatch) -> tuple[Pipeline, list[Range]]:
        pipeline, ranges = self._pipelines.fit(dispatch.kernel, dispatch.buffers)
        self.native.retain_pipeline(pipeline.handle)
        self._held.append(pipeline.handle)
        return pipeline, ranges

    def _uniform_buffer(self, limits: dict[str, int], sizes: Sequence[int]) -> Any:
        """Room for parameters of these sizes in bytes."""
        alignment = limits["min-uniform-buffer-offset-alignment"]
        buffer = self.native.create_buffer(sum([padded_bytes(size, alignment) for size in sizes]), UNIFORM)
        if errors := self.native.sink.take():
            self.native.release_buffer(buffer)
            raise OutOfMemoryError(
                "WebGPU out of memory. A captured graph's parameters: " + "; ".join(text for _, text in errors)
            )
        return buffer

    # Running

    def submit(self) -> None:
        """Encodes and queues everything, without waiting. What goes wrong is among the device's errors."""
        native = self.native
        if self._uniform_changes:
            # Queues run in order, so the previous submission has read it by then.
            native.write_buffer(self._uniform, 0, self._uniform_data)
        self._encoder.queue(self._soon if self._encoder.is_idle else self._submissions)

    def release(self) -> None:
        """Lets go of what the adapter holds for it. What was submitted keeps its own references."""
        for bound in self._bound.values():
            self.native.release_bind_group(bound.group)
        for pipeline in self._held:
            self.native.release_pipeline(pipeline)
        if self._uniform is not None:
            self.native.release_buffer(self._uniform)
        self._bound, self._held, self._uniform, self._submissions, self._soon = {}, [], None, [], []
        self._living.discard(self)
