"""Host memory that the GPU reads from: kept buffers, mapped for writing, through which large uploads go.

``writeBuffer`` takes fresh memory for every large upload, and is a call on the device, which threads make one at a
time. Any thread may write into one of these while others use the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .buffers import Buffer
from .implementation import UPLOAD

if TYPE_CHECKING:
    from .implementation import Mark, NativeDevice

SMALLEST_BYTES, LARGEST_BYTES = 1 << 16, 64 << 20
"""What goes through them. Less is quicker by ``writeBuffer``."""
MOST_BYTES = 512 << 20
"""In all buffers of one device together."""


class UploadBlock:
    """A buffer that one upload has: ``memory`` is its host's side while it is mapped."""

    __slots__ = ("buffer", "mark", "memory")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.memory: Any = None
        self.mark: Mark | None = None
        """After the copy out of it."""


class UploadMemory:
    """The buffers of one device. All calls come from one thread at a time; what is written into them from any."""

    def __init__(self, native: NativeDevice) -> None:
        self._native = native
        self._used: set[UploadBlock] = set()
        self._kept: list[UploadBlock] = []
        self._size_bytes = 0

    def take(self, size_bytes: int) -> UploadBlock | None:
        """A mapped buffer for so many bytes, at once. None where there is no more memory for it."""
        if not hasattr(self._native, "map_to_write"):  # other packages' implementations need not have it
            return None
        wanted_bytes = 1 << (size_bytes - 1).bit_length()
        block = self._idle(wanted_bytes) or self._new(wanted_bytes)
        if block is None:
            return None
        try:
            block.memory = self._native.map_to_write(block.buffer.handle, size_bytes)
        finally:
            if block.memory is None:
                self._release(block)
        if block.memory is None:
            self._native.sink.take()  # not mapped: there is another way
            return None
        self._used.add(block)
        return block

    def close_mapping(self, block: UploadBlock) -> None:
        """Nobody writes into it any more: it can be copied from."""
        block.memory = None
        self._native.unmap(block.buffer.handle)

    def give(self, block: UploadBlock) -> None:
        """It can be used again when everything submitted until now is done."""
        block.mark = self._native.mark()
        self._used.remove(block)
        self._kept.append(block)

    def drop(self, block: UploadBlock) -> None:
        """For one that is not copied from: writing into it failed, or the device was closed meanwhile."""
        block.memory = None
        self._used.remove(block)
        self._release(block)

    def release_idle(self) -> None:
        """Gives back those that are not in use. The library frees each when what was submitted with it is done."""
        for block in self._kept:
            self._release(block)
        self._kept = []

    def close(self) -> None:
        """Gives all back but those that somebody may be writing into, who then calls :meth:`drop`."""
        self.release_idle()
        for block in [block for block in self._used if block.memory is None]:
            self.drop(block)

    def _idle(self, size_bytes: int) -> UploadBlock | None:
        fitting = [block for block in self._kept if block.buffer.size_bytes == size_bytes]
        if fitting:
            self._native.poll(wait=False)
        for block in fitting:
            if block.mark is not None and block.mark.reached:
                self._kept.remove(block)
                return block
        return None

    def _new(self, size_bytes: int) -> UploadBlock | None:
        if self._size_bytes + size_bytes > MOST_BYTES:
            self._release_reached()
        if self._size_bytes + size_bytes > MOST_BYTES:
            return None
        handle = self._native.create_buffer(size_bytes, UPLOAD)
        if self._native.sink.take():  # no memory: there is another way
            self._native.release_buffer(handle)
            return None
        self._size_bytes += size_bytes
        return UploadBlock(Buffer(handle, size_bytes))

    def _release_reached(self) -> None:
        """Gives back those that the GPU has read. The others still take memory, whoever holds them."""
        self._native.poll(wait=False)
        reached = [block for block in self._kept if block.mark is not None and block.mark.reached]
        for block in reached:
            self._kept.remove(block)
            self._release(block)

    def _release(self, block: UploadBlock) -> None:
        self._size_bytes -= block.buffer.size_bytes
        self._native.release_buffer(block.buffer.handle)
