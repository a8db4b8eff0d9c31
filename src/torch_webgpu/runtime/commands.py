"""What can be submitted to a device: frozen descriptions that hold no GPU objects but buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_webgpu.wgsl.kernel import Kernel

if TYPE_CHECKING:
    from .buffers import Buffer


class Dispatch(NamedTuple):
    """Run ``kernel`` on ``grid`` workgroups; ``buffers`` follow its bindings, ``params`` packs its parameters."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    params: bytes
    grid: tuple[int, int, int]


class CopyBuffer(NamedTuple):
    """Copy ``nbytes`` between two different buffers. Offsets and size are multiples of 4."""

    src: Buffer
    src_offset: int
    dst: Buffer
    dst_offset: int
    nbytes: int


class ClearBuffer(NamedTuple):
    """Set ``nbytes`` at ``offset`` to zero. Both are multiples of 4."""

    buffer: Buffer
    offset: int
    nbytes: int


Command = Dispatch | CopyBuffer | ClearBuffer
