"""Commands to one queue submission."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch_webgpu.errors import WebGPUError
from torch_webgpu.runtime import ffi
from torch_webgpu.runtime.buffers import Buffer
from torch_webgpu.runtime.calls import Call, Step, encode, encode_transfer, end_pass
from torch_webgpu.runtime.commands import Command, Dispatch
from torch_webgpu.runtime.prepared import Prepared

if TYPE_CHECKING:
    from torch_webgpu.runtime.ffi import NativeDevice
    from torch_webgpu.runtime.pipelines import Bound, PipelineCache

UNIFORM_BYTES = 1 << 18


class Encoder:
    """Encodes and submits commands in order, consecutive dispatches in one compute pass.

    Parameters travel as immediates. Those of kernels that have more than the adapter takes go through one uniform
    buffer, rewritten before each submission: queues run in order, so the previous one has read it by then.
    """

    def __init__(self, native: NativeDevice, pipelines: PipelineCache, limits: dict[str, int]) -> None:
        self._native = native
        self._pipelines = pipelines
        self._max_grid = limits["max-compute-workgroups-per-dimension"]
        self._uniform_alignment = limits["min-uniform-buffer-offset-alignment"]
        self._uniform = Buffer(native.create_buffer(UNIFORM_BYTES, ffi.UNIFORM), UNIFORM_BYTES)
        self._uniform_data = bytearray()
        self._offset = ffi.offsets(1)
        pipelines.use_uniform(self._uniform)
        self.submissions = 0

    def submit(self, commands: Iterable[Command], begin_pass: Callable[[Any], Any] | None = None) -> None:
        """Encodes and queues ``commands``. On an exception nothing was queued.

        ``commands`` may come one by one, each after the one before was encoded.
        ``begin_pass`` replaces how a compute pass is begun on an encoder, for timing: each dispatch has its own then.
        """
        encoded: list[tuple[Any, bytearray]] = []
        rest: Iterator[Command] | None = iter(commands)
        try:
            while rest is not None:
                encoder = self._native.create_encoder()
                encoded.append((encoder, bytearray()))
                rest = self._encode(encoder, rest, begin_pass)
                encoded[-1] = encoder, self._uniform_data
        except BaseException:
            for encoder, _ in encoded:
                ffi.release_encoder(encoder)
            raise
        for index, (encoder, uniform_data) in enumerate(encoded):
            if uniform_data:
                self._native.write_buffer(self._uniform.handle, 0, uniform_data)
            if not self._native.run(encoder):
                for unused, _ in encoded[index + 1 :]:
                    ffi.release_encoder(unused)
                return  # the reason is among the device's errors, which the caller raises
            self.submissions += 1

    def prepare(self, commands: Sequence[Command]) -> Prepared | None:
        """Looks everything up for :meth:`submit_prepared`.

        None for more parameters than the uniform buffer holds, or more bind groups than are kept. Raises what
        :meth:`submit` would; nothing runs.
        """
        for _ in range(2):  # what was found first may be gone before the last is found
            edition = self._pipelines.edition
            made = self._prepare(commands, edition)
            if edition is self._pipelines.edition:
                return made if len(made.uniform) <= UNIFORM_BYTES else None
        return None

    def _prepare(self, commands: Sequence[Command], edition: object) -> Prepared:
        steps: list[Step] = []
        params: list[bytearray | slice | None] = []
        uniform = bytearray()
        calls: list[Call] | None = None
        before: Any = None
        for command in commands:
            if not isinstance(command, Dispatch):
                steps.append(command)
                params.append(None)
                calls = None
                continue
            bound = self._look_up(command)
            pipeline = bound.pipeline
            if calls is None:
                calls, before = [], None
                steps.append(calls)
            handle = None if pipeline is before else pipeline
            before = pipeline
            size = len(command.params)
            if not size:
                params.append(None)
                calls.append((handle, bound.group, 0, ffi.NULL, None, 0, *command.grid))
            elif bound.uses_immediates:
                data = bytearray(command.params)
                params.append(data)
                calls.append((handle, bound.group, 0, ffi.NULL, ffi.host_memory(data), size, *command.grid))
            else:
                offsets = ffi.offsets(1)
                offsets[0] = start = len(uniform)
                params.append(slice(start, start + size))
                uniform += command.params + bytes(-size % self._uniform_alignment)
                calls.append((handle, bound.group, 1, offsets, None, 0, *command.grid))
        view = memoryview(uniform)
        return Prepared(steps, [view[p] if isinstance(p, slice) else p for p in params], uniform, edition)

    def submit_prepared(self, prepared: Prepared, last: Callable[[], Iterable[Command]] | None) -> None:
        """Encodes and queues what was prepared, in the cache's present edition, and transfers that come last.

        Those are asked for when everything else is encoded. On an exception nothing was queued.
        """
        native = self._native
        encoder = native.create_encoder()
        try:
            encode(native, encoder, prepared.steps)
            if last is not None:
                for transfer in last():
                    assert not isinstance(transfer, Dispatch)
                    encode_transfer(encoder, transfer)
        except BaseException:
            ffi.release_encoder(encoder)
            raise
        if prepared.uniform:
            native.write_buffer(self._uniform.handle, 0, prepared.uniform)
        if native.run(encoder):
            self.submissions += 1

    def _look_up(self, dispatch: Dispatch) -> Bound:
        """Its pipeline and bind group. Raises WebGPUError for parameters or a grid that do not fit."""
        kernel, buffers, params, (x, y, z) = dispatch
        bound = self._pipelines.recent.get((kernel.key, buffers)) or self._pipelines.bound(dispatch)
        if len(params) != bound.param_bytes:
            raise WebGPUError(f"kernel {kernel.name} takes {bound.param_bytes} bytes of parameters, not {len(params)}")
        limit = self._max_grid
        if x > limit or y > limit or z > limit:
            raise WebGPUError(f"kernel {kernel.name}: grid {(x, y, z)} exceeds {limit} workgroups a dimension")
        return bound

    def check(self, commands: Iterable[Command]) -> None:
        """Raises what :meth:`submit` would for kernels that do not compile and buffers that do not fit."""
        for command in commands:
            if isinstance(command, Dispatch):
                self._pipelines.bound(command)

    def _encode(
        self, encoder: Any, commands: Iterator[Command], begin_timed: Callable[[Any], Any] | None
    ) -> Iterator[Command] | None:
        """Encodes commands; the rest of them, from the first that found no room for its parameters."""
        begin_pass = begin_timed or self._native.begin_pass
        look_up = self._look_up
        set_pipeline, set_bind_group, set_immediates = ffi.set_pipeline, ffi.set_bind_group, ffi.set_immediates
        dispatch_workgroups, null = ffi.dispatch_workgroups, ffi.NULL
        self._uniform_data = bytearray()
        compute: Any = None
        current: Any = None
        try:
            for command in commands:
                if command.__class__ is not Dispatch:
                    if compute is not None:
                        end_pass(compute)
                        compute = None
                    encode_transfer(encoder, command)  # type: ignore[arg-type]
                    continue
                bound = look_up(command)
                _, _, params, (x, y, z) = command
                if compute is None:
                    compute, current = begin_pass(encoder), None
                if bound.pipeline is not current:
                    current = bound.pipeline
                    set_pipeline(compute, current)
                if bound.uses_immediates:
                    set_bind_group(compute, 0, bound.group, 0, null)
                    set_immediates(compute, 0, params, len(params))
                elif not params:
                    set_bind_group(compute, 0, bound.group, 0, null)
                elif self._place(params):
                    set_bind_group(compute, 0, bound.group, 1, self._offset)
                else:
                    return chain((command,), commands)
                dispatch_workgroups(compute, x, y, z)
                if begin_timed is not None:
                    end_pass(compute)
                    compute = None
            return None
        finally:
            if compute is not None:
                end_pass(compute)

    def _place(self, params: bytes) -> bool:
        """Appends parameters to the uniform data, and their place to the offsets; False when there is no room."""
        data = self._uniform_data
        offset = len(data)
        data += params
        data += bytes(-len(data) % self._uniform_alignment)
        if len(data) > UNIFORM_BYTES:
            del data[offset:]
            return False
        self._offset[0] = offset
        return True
