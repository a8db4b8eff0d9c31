"""Commands with everything looked up, and how they are encoded: the hot loop of the package.

WebGPU has no command buffers that can be submitted twice, so what runs again is encoded again. All else can lie ready.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from torch_webgpu.errors import WebGPUError

from .commands import ClearBuffer, Command, CopyBuffer, Dispatch

if TYPE_CHECKING:
    from .implementation import NativeDevice
    from .pipelines import Bound

EncodedCall = tuple[Any, Any, int, Any, Any, int, int, int, int]
"""Pipeline (None: as before), bind group, dynamic offsets: count and array; immediates (None: none) and size; grid."""

EncoderStep = Iterable[EncodedCall] | CopyBuffer | ClearBuffer
"""A compute pass, or what has no place in one."""


class Assembler:
    """Looks up what commands need.

    ``params``: of each command the parameters, which may be changed between encodings; None for one that takes none.
    ``uniform``: those among them that are no immediates, as they lie in the uniform buffer, which ``uniform_bytes``
    bounds. ``left``: the first command that found no room there, with which a submission of its own begins.
    """

    def __init__(
        self,
        native: NativeDevice,
        look_up: Callable[[Dispatch], Bound],
        limits: dict[str, int],
        uniform_bytes: int = sys.maxsize,
    ) -> None:
        self._native = native
        self._look_up = look_up
        self._max_grid = limits["max-compute-workgroups-per-dimension"]
        self._alignment = limits["min-uniform-buffer-offset-alignment"]
        self._uniform_bytes = uniform_bytes
        self._parts: list[bytearray | slice | None] = []
        self.uniform = bytearray()
        self.left: Command | None = None

    @property
    def params(self) -> list[bytearray | memoryview | None]:
        view = memoryview(self.uniform)
        return [view[part] if isinstance(part, slice) else part for part in self._parts]

    def steps(self, commands: Iterable[Command]) -> Iterator[EncoderStep]:
        """The steps one by one: consecutive dispatches are one compute pass, its calls looked up as they are taken.

        Raises what looking up raises, and WebGPUError for parameters or a grid that do not fit.
        """
        for are_dispatches, run in groupby(commands, _is_dispatch):
            if are_dispatches:
                yield self._calls(run)  # type: ignore[arg-type]
                if self.left is not None:
                    return
            else:
                for transfer in run:
                    self._parts.append(None)
                    yield transfer  # type: ignore[misc]

    def assemble(self, commands: Iterable[Command]) -> list[EncoderStep]:
        """All steps, to be encoded any number of times as long as what was looked up is there."""
        return [step if isinstance(step, (CopyBuffer, ClearBuffer)) else list(step) for step in self.steps(commands)]

    def _calls(self, dispatches: Iterator[Dispatch]) -> Iterator[EncodedCall]:
        look_up, parts, limit, uniform = self._look_up, self._parts, self._max_grid, self.uniform
        native, null = self._native, self._native.null
        before: Any = None
        for dispatch in dispatches:
            bound = look_up(dispatch)
            kernel, _, buffers, (x, y, z) = dispatch
            pipeline, size = bound.pipeline, len(buffers)
            if size != bound.param_bytes:
                raise WebGPUError(f"kernel {kernel.name} takes {bound.param_bytes} bytes of parameters, not {size}")
            if x > limit or y > limit or z > limit:
                raise WebGPUError(f"kernel {kernel.name}: grid {(x, y, z)} exceeds {limit} workgroups a dimension")
            handle = None if pipeline is before else pipeline
            before = pipeline
            if not size:
                parts.append(None)
                yield handle, bound.group, 0, null, None, 0, x, y, z
            elif bound.uses_immediates:
                data = bytearray(buffers)
                parts.append(data)
                yield handle, bound.group, 0, null, native.host_memory(data), size, x, y, z
            else:
                start = len(uniform)
                padded = padded_bytes(size, self._alignment)
                if start + padded > self._uniform_bytes:
                    self.left = dispatch
                    return
                offsets = native.offsets(1)
                offsets[0] = start
                parts.append(slice(start, start + size))
                uniform += buffers + bytes(padded - size)
                yield handle, bound.group, 1, offsets, None, 0, x, y, z


def padded_bytes(size: int, alignment: int) -> int:
    """What so many bytes of parameters take in a uniform buffer."""
    return -(-size // alignment) * alignment


def _is_dispatch(command: Command) -> bool:
    return command.__class__ is Dispatch


BeginPass = Callable[[Any], Any]
"""How a compute pass is begun on an encoder."""


def encode(
    native: NativeDevice, encoder: Any, steps: Iterable[EncoderStep], begin_pass: BeginPass | None = None
) -> None:
    """Encodes the steps in order. ``begin_pass``: what to begin a compute pass with instead of the device's own."""
    for step in steps:
        if isinstance(step, CopyBuffer):
            src, src_offset, dst, dst_offset, nbytes = step
            native.copy_buffer(encoder, src.handle, src_offset, dst.handle, dst_offset, nbytes)
        elif isinstance(step, ClearBuffer):
            native.clear_buffer(encoder, step.buffer.handle, step.buffer.start_bytes + step.offset, step.nbytes)
        else:
            set_pipeline, set_bind_group = native.set_pipeline, native.set_bind_group
            set_immediates, dispatch_workgroups = native.set_immediates, native.dispatch_workgroups
            compute = native.begin_pass(encoder) if begin_pass is None else begin_pass(encoder)
            try:
                for pipeline, group, count, offsets, data, size, x, y, z in step:
                    if pipeline is not None:
                        set_pipeline(compute, pipeline)
                    set_bind_group(compute, 0, group, count, offsets)
                    if data is not None:
                        set_immediates(compute, 0, data, size)
                    dispatch_workgroups(compute, x, y, z)
            finally:
                native.end_pass(compute)
                native.release_pass(compute)


def encode_apart(native: NativeDevice, begin_pass: BeginPass, encoder: Any, steps: Iterable[EncoderStep]) -> None:
    """Encodes the steps in order, each dispatch in a compute pass of its own."""
    for step in steps:
        if isinstance(step, (CopyBuffer, ClearBuffer)):
            encode(native, encoder, (step,))
            continue
        current: Any = None
        for pipeline, *rest in step:
            current = current if pipeline is None else pipeline
            encode(native, encoder, (((current, *rest),),), begin_pass)
