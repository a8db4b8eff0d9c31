"""Buffers that are host memory: the GPU reads and writes it over its bus, other processes may have it mapped, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_webgpu.errors import WebGPUError

from .buffers import Buffer
from .implementation import BUFFER

if TYPE_CHECKING:
    from .implementation import NativeDevice

FEATURE = "host-mapped-pointer"
"""Of adapters that take host memory."""


class ImportedMemory:
    """The buffers of one device that are host memory, and what they go back to (see ``Buffer.owner``)."""

    def __init__(self, native: NativeDevice, on_release: Callable[[Buffer], None]) -> None:
        self._native, self._on_release = native, on_release
        self._buffers: set[Buffer] = set()
        self._released: list[Buffer] = []

    def buffer(self, memory: memoryview) -> Buffer:
        """A buffer of this memory, whole pages that stay mapped as long as it is there. WebGPUError if refused."""
        handle = self._native.import_host_memory(memory, BUFFER)
        errors = self._native.sink.take()
        if errors:
            if handle != self._native.null:
                self._native.release_buffer(handle)
            raise WebGPUError("; ".join(message for _, message in errors))
        buffer = Buffer(handle, memory.nbytes)
        buffer.owner = self
        self._buffers.add(buffer)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Takes a buffer back, which :meth:`retire` gives to the adapter."""
        self._released.append(buffer)

    def retake(self, buffer: Buffer) -> None:
        """Undoes a :meth:`release`."""
        self._released.remove(buffer)

    def retire(self) -> None:
        """Lets the memory of released buffers go. All commands that name one have been submitted."""
        for buffer in self._released:
            self._on_release(buffer)
            self._native.release_buffer(buffer.handle)
            buffer.handle = None
            self._buffers.discard(buffer)
        self._released.clear()

    def close(self) -> None:
        """Releases all, those in use, too: the device is gone. No bind group names them."""
        for buffer in self._buffers:
            self._native.release_buffer(buffer.handle)
            buffer.handle = None
        self._buffers.clear()
        self._released.clear()
