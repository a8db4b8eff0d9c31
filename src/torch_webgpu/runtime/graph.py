"""A captured graph as the GPU sees it: commands with everything looked up, to be encoded again and again.

A replay encodes its commands anew and does nothing else: pipelines, bind groups, parameters and grids lie ready in flat
tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_webgpu.errors import OutOfMemoryError, WebGPUError
from torch_webgpu.runtime import ffi
from torch_webgpu.runtime.calls import Call, Step, encode
from torch_webgpu.runtime.commands import Command, Dispatch

if TYPE_CHECKING:
    from torch_webgpu.runtime.buffers import Buffer
    from torch_webgpu.runtime.encoder import Encoder
    from torch_webgpu.runtime.ffi import NativeDevice
    from torch_webgpu.runtime.pipelines import Pipeline, PipelineCache, Range

DISPATCHES_PER_SUBMISSION = 512
"""The GPU starts on the first of these while the host encodes the next."""


class EncodedGraph:
    """Commands ready to be submitted any number of times.

    It owns its bind groups and holds its pipelines, whatever the pipeline cache evicts; the buffers are the caller's to
    keep. Parameters may be changed between submissions, through :meth:`place`.
    """

    def __init__(
        self,
        native: NativeDevice,
        pipelines: PipelineCache,
        encoder: Encoder,
        limits: dict[str, int],
        commands: Sequence[Command],
    ) -> None:
        self.native = native
        self.commands = tuple(commands)
        self._pipelines = pipelines
        self._encoder = encoder
        self._max_grid = limits["max-compute-workgroups-per-dimension"]
        self._alignment = limits["min-uniform-buffer-offset-alignment"]
        self._held: list[Any] = []  # pipelines
        self._groups: dict[tuple[str, tuple[Buffer, ...]], Any] = {}
        self._places: dict[int, tuple[bytearray, int]] = {}
        self._uniform: Any = None
        self._uniform_data = bytearray()
        self._uniform_changes = False
        try:
            self._submissions = self._prepare()
        except BaseException:
            self.release()
            raise

    @property
    def dispatches(self) -> int:
        """How many there are."""
        return sum(isinstance(command, Dispatch) for command in self.commands)

    def place(self, command: int, byte: int) -> tuple[bytearray, int]:
        """Where that byte of a dispatch's parameters lies: what is written there holds from the next submission on."""
        data, start = self._places[command]
        self._uniform_changes = self._uniform_changes or data is self._uniform_data
        return data, start + byte

    def current(self) -> list[Command]:
        """The commands with the parameters they have now."""
        result: list[Command] = []
        for index, command in enumerate(self.commands):
            if isinstance(command, Dispatch):
                data, start = self._places[index]
                params = bytes(data[start : start + len(command.params)])
                command = Dispatch(command.kernel, command.buffers, params, command.grid)
            result.append(command)
        return result

    # Preparing

    def _prepare(self) -> list[list[Step]]:
        fitted: list[tuple[Pipeline, list[Range]] | None] = []
        for index, command in enumerate(self.commands):
            if isinstance(command, Dispatch):
                fitted.append(self._fit(index, command))
            else:
                fitted.append(None)
        if self._uniform_data:
            self._uniform = self.native.create_buffer(len(self._uniform_data), ffi.UNIFORM)
            if errors := self.native.sink.take():
                raise OutOfMemoryError(
                    "WebGPU out of memory. A captured graph's parameters: " + "; ".join(text for _, text in errors)
                )
            self.native.write_buffer(self._uniform, 0, self._uniform_data)
        submissions: list[list[Step]] = []
        count = DISPATCHES_PER_SUBMISSION
        before: Any = None
        for index, (command, fit) in enumerate(zip(self.commands, fitted, strict=True)):
            if count == DISPATCHES_PER_SUBMISSION:
                submissions.append([])
                count = 0
            count += 1
            steps = submissions[-1]
            if not isinstance(command, Dispatch):
                steps.append(command)
                continue
            assert fit is not None
            if not steps or not isinstance(steps[-1], list):
                steps.append([])
                before = None
            steps[-1].append(self._call(index, command, *fit, before))  # type: ignore[union-attr]
            before = fit[0]
        return submissions

    def _fit(self, index: int, command: Dispatch) -> tuple[Pipeline, list[Range]]:
        """Looks the pipeline up and finds the parameters a place."""
        kernel, params = command.kernel, command.params
        pipeline, ranges = self._pipelines.fit(kernel, command.buffers)
        ffi.retain_pipeline(pipeline.handle)
        self._held.append(pipeline.handle)
        if len(params) != pipeline.param_bytes:
            raise WebGPUError(
                f"kernel {kernel.name} takes {pipeline.param_bytes} bytes of parameters, not {len(params)}"
            )
        if max(command.grid) > self._max_grid:
            raise WebGPUError(
                f"kernel {kernel.name}: grid {command.grid} exceeds {self._max_grid} workgroups a dimension"
            )
        if pipeline.uses_immediates or not params:
            self._places[index] = bytearray(params), 0
        else:
            self._places[index] = self._uniform_data, len(self._uniform_data)
            self._uniform_data += params + bytes(-len(params) % self._alignment)
        return pipeline, ranges

    def _call(self, index: int, command: Dispatch, pipeline: Pipeline, ranges: list[Range], before: Any) -> Call:
        key = command.kernel.key, command.buffers
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._pipelines.group(command.kernel, pipeline, ranges, self._uniform)
        handle = None if pipeline is before else pipeline.handle
        data, start = self._places[index]
        if not command.params:
            return handle, group, 0, ffi.NULL, None, 0, *command.grid
        if pipeline.uses_immediates:
            return handle, group, 0, ffi.NULL, ffi.host_memory(data), len(data), *command.grid
        offsets = ffi.offsets(1)
        offsets[0] = start
        return handle, group, 1, offsets, None, 0, *command.grid

    # Running

    def submit(self) -> None:
        """Encodes and queues everything, without waiting. What goes wrong is among the device's errors."""
        native = self.native
        if self._uniform_changes:
            # Queues run in order, so the previous submission has read it by then.
            native.write_buffer(self._uniform, 0, self._uniform_data)
        for steps in self._submissions:
            encoder = native.create_encoder()
            try:
                encode(native, encoder, steps)
            except BaseException:
                ffi.release_encoder(encoder)
                raise
            if not native.run(encoder):
                return
            self._encoder.submissions += 1

    def release(self) -> None:
        """Lets go of what the adapter holds for it. What was submitted keeps its own references."""
        for group in self._groups.values():
            ffi.release_bind_group(group)
        for pipeline in self._held:
            self.native.release_pipeline(pipeline)
        if self._uniform is not None:
            self.native.release_buffer(self._uniform)
        self._groups, self._held, self._uniform, self._submissions = {}, [], None, []
