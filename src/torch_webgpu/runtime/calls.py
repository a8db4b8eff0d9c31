"""Commands with everything looked up, and how they are encoded: the hot loop of the package.

WebGPU has no command buffers that can be submitted twice, so what runs again is encoded again. All else can lie ready.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch_webgpu.runtime import ffi
from torch_webgpu.runtime.commands import Clear, Copy

if TYPE_CHECKING:
    from torch_webgpu.runtime.ffi import NativeDevice

Call = tuple[Any, Any, int, Any, Any, int, int, int, int]
"""Pipeline (None: as before), bind group, dynamic offsets: count and array; immediates (None: none) and size; grid."""

Step = list[Call] | Copy | Clear
"""A compute pass, or what has no place in one."""


def encode(native: NativeDevice, encoder: Any, steps: Iterable[Step]) -> None:
    """Encodes the steps in order."""
    for step in steps:
        if isinstance(step, list):
            encode_pass(native, encoder, step)
        else:
            encode_transfer(encoder, step)


def encode_pass(native: NativeDevice, encoder: Any, calls: Iterable[Call]) -> None:
    """Encodes one compute pass."""
    set_pipeline, set_bind_group, set_immediates = ffi.set_pipeline, ffi.set_bind_group, ffi.set_immediates
    dispatch_workgroups = ffi.dispatch_workgroups
    compute = native.begin_pass(encoder)
    try:
        for pipeline, group, count, offsets, data, size, x, y, z in calls:
            if pipeline is not None:
                set_pipeline(compute, pipeline)
            set_bind_group(compute, 0, group, count, offsets)
            if data is not None:
                set_immediates(compute, 0, data, size)
            dispatch_workgroups(compute, x, y, z)
    finally:
        end_pass(compute)


def end_pass(compute: Any) -> None:
    """Ends a compute pass, which is not used any more."""
    ffi.end_pass(compute)
    ffi.release_pass(compute)


def encode_transfer(encoder: Any, command: Copy | Clear) -> None:
    """Encodes a command that is no dispatch, outside of passes."""
    if isinstance(command, Copy):
        ffi.copy_buffer(
            encoder, command.src.handle, command.src_offset, command.dst.handle, command.dst_offset, command.nbytes
        )
    else:
        ffi.clear_buffer(encoder, command.buffer.handle, command.offset, command.nbytes)
