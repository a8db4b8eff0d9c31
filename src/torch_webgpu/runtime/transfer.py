"""Bytes between host and GPU: uploads through the queue, downloads batched through one staging buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_webgpu.errors import OutOfMemoryError, WebGPUError

from .buffers import Buffer
from .calls import encode
from .commands import CopyBuffer
from .implementation import READBACK
from .upload_memory import UploadMemory

if TYPE_CHECKING:
    from .implementation import NativeDevice

_CHUNK_BYTES = 64 << 20  # what one staging buffer holds: enough for full speed, little enough to keep

_LARGE_BYTES = 1 << 16  # what is worth giving up the interpreter's lock for, as NumPy does while it copies

Request = tuple[Buffer, int, int]  # buffer, offset in bytes, number of bytes


HostMemory = np.ndarray | memoryview
"""Host memory: bytes in one dimension that can be written."""


class Readback:
    """A download underway, or a part of one: what goes through one staging buffer, from where to where."""

    __slots__ = ("_targets", "copies", "size_bytes", "staging")

    def __init__(self, staging: Buffer | None = None) -> None:
        self.staging: Any = staging
        self.size_bytes = 0
        self.copies: list[CopyBuffer] = []
        """What the GPU does first: whole words."""
        self._targets: list[tuple[int, HostMemory]] = []  # where their bytes begin in the staging buffer

    def add(self, buffer: Buffer, offset: int, nbytes: int, target: HostMemory) -> None:
        """One more part: these bytes. WebGPUError if the buffer has not that many."""
        if not 0 <= offset <= offset + nbytes <= buffer.size_bytes:
            raise WebGPUError(f"download of {nbytes} bytes at {offset} from {buffer}")
        if nbytes:
            at, skipped = self.size_bytes, offset & 3
            words = (skipped + nbytes + 3) & ~3
            # Without the named tuple's own constructor, a function of Python's.
            self.copies.append(tuple.__new__(CopyBuffer, (buffer, offset - skipped, self.staging, at, words)))
            self._targets.append((at + skipped, target))
            self.size_bytes = at + words

    def stage(self, staging: Buffer) -> None:
        """Goes through another staging buffer."""
        self.staging, self.copies = staging, [copy._replace(dst=staging) for copy in self.copies]

    def take(self, mapped: Any) -> None:
        """What the host does when the staging buffer is mapped. Other threads run while large parts are copied."""
        host = memoryview(mapped)
        for first, target in self._targets:
            if len(target) < _LARGE_BYTES:
                target[:] = host[first : first + len(target)]
            else:
                np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(host, np.uint8, len(target), first))


class Transfer:
    """Uploads and downloads of one device."""

    def __init__(self, native: NativeDevice) -> None:
        self._native = native
        self.uploads = UploadMemory(native)
        self._pending_bytes = 0
        self._staging: Buffer | None = None
        self._spare: list[Buffer] = []  # staging buffers of readbacks that are finished
        self._underway: set[Buffer] = set()  # and of those that are not

    def upload(self, buffer: Buffer, offset: int, data: memoryview | bytes) -> None:
        """Writes ``data`` at ``offset``, after the submitted work. Any alignment; whole words are the fast case."""
        raw = np.frombuffer(data, np.uint8)
        if offset < 0 or offset + raw.size > buffer.size_bytes:
            raise WebGPUError(f"upload of {raw.size} bytes at {offset} into {buffer}")
        if not raw.size:
            return
        start, end = offset & ~3, -(-(offset + raw.size) // 4) * 4
        if (start, end) != (offset, offset + raw.size):
            raw = self._whole_words(buffer, offset, raw, start, end)
        for at in range(0, raw.size, _CHUNK_BYTES):
            chunk = raw[at : at + _CHUNK_BYTES]
            self._native.write_buffer(buffer.handle, start + at, chunk)
            self._pending_bytes += chunk.size
            if self._pending_bytes >= _CHUNK_BYTES:
                self._native.flush_writes()
                self._native.poll(wait=False)
                self._pending_bytes = 0

    def _whole_words(self, buffer: Buffer, offset: int, raw: np.ndarray, start: int, end: int) -> np.ndarray:
        """``raw`` extended by the neighbours it shares its first and last word with."""
        first, last = self.download([(buffer, start, 4), (buffer, end - 4, 4)])
        words = np.empty(end - start, np.uint8)
        words[:4], words[-4:] = first, last
        words[offset - start : offset - start + raw.size] = raw
        return words

    def download(self, requests: Sequence[Request], into: Sequence[HostMemory] = ()) -> list[np.ndarray]:
        """Waits for the submitted work and returns the bytes of each request, as uint8 arrays.

        Those of the first requests go ``into`` memory of the right sizes instead.
        """
        results = [np.empty(max(nbytes, 0), np.uint8) for _, _, nbytes in requests[len(into) :]]
        targets = [*into, *results]
        small = self.begin(requests, targets)
        for readback in self._plan(requests, targets) if small is None else (small,):
            if small is None:
                readback.stage(self._staging_buffer(readback.size_bytes))
            encoder = self._native.create_encoder()
            encode(self._native, encoder, readback.copies)
            if self._native.run(encoder):
                self.finish(readback)
        return results

    def begin(self, requests: Sequence[Request], into: Sequence[HostMemory]) -> Readback | None:
        """A download ``into`` these arrays whose copies the caller submits itself, before :meth:`finish`.

        None for nothing, and for more than one staging buffer holds. There may be no other download in between.
        """
        staging = self._staging
        readback = Readback(staging)
        for (buffer, offset, nbytes), target in zip(requests, into, strict=True):
            readback.add(buffer, offset, nbytes, target)
        size_bytes = readback.size_bytes
        if not 0 < size_bytes <= _CHUNK_BYTES:
            return None
        if staging is None or size_bytes > staging.size_bytes:
            readback.stage(self._staging_buffer(size_bytes))
        return readback

    def begin_apart(self, request: Request, into: HostMemory) -> list[Readback]:
        """:meth:`begin`, but with staging buffers of its own: others may come in between.

        The array is the caller's to keep until each part is finished.
        """
        reads = self._plan([request], [into])
        try:
            for readback in reads:
                readback.stage(self._spare_staging(readback.size_bytes))
                self._underway.add(readback.staging)
        except OutOfMemoryError:
            begun = [readback.staging for readback in reads if readback.staging is not None]
            self._underway.difference_update(begun)
            self._spare += begun
            raise
        return reads

    def finish(self, readback: Readback) -> None:
        """Waits until a part of a download is there, and writes it where it belongs."""
        staging = readback.staging
        mapped = self._native.map(staging.handle, readback.size_bytes)
        if mapped is not None:  # else the reason is among the device's errors, which the caller raises
            readback.take(mapped)
            self._native.unmap(staging.handle)
            if self._underway:
                self._take_back(staging)

    def map(self, readback: Readback) -> Any:
        """Waits until a part of a download is there; its staging buffer's memory until :meth:`unmap`; None on errors.

        Others may be mapped meanwhile.
        """
        return self._native.map(readback.staging.handle, readback.size_bytes)

    def unmap(self, readback: Readback) -> None:
        """Takes the staging buffer back."""
        self._native.unmap(readback.staging.handle)
        self._take_back(readback.staging)

    def _take_back(self, staging: Buffer) -> None:
        """A staging buffer is free for the next download that has one of its own."""
        if staging in self._underway:
            self._underway.remove(staging)
            self._spare.append(staging)

    def _spare_staging(self, size_bytes: int) -> Buffer:
        fitting = [buffer for buffer in self._spare if size_bytes <= buffer.size_bytes <= max(4 * size_bytes, 1 << 16)]
        if fitting:
            self._spare.remove(fitting[0])
            return fitting[0]
        return self._new_staging(size_bytes)

    @staticmethod
    def _plan(requests: Sequence[Request], into: Sequence[HostMemory]) -> list[Readback]:
        """What fills the targets, each through one staging buffer that it is yet to be given."""
        reads = [Readback()]
        for (buffer, offset, nbytes), target in zip(requests, into, strict=True):
            done = 0
            while True:
                room = _CHUNK_BYTES - reads[-1].size_bytes - (offset + done) % 4
                if room <= 0:
                    reads.append(Readback())
                    continue
                part = min(nbytes - done, room)
                reads[-1].add(buffer, offset + done, part, target if part == nbytes else target[done : done + part])
                done += part
                if done >= nbytes:
                    break
        return [read for read in reads if read.size_bytes]

    def _staging_buffer(self, size_bytes: int) -> Buffer:
        if self._staging is None or size_bytes > self._staging.size_bytes:
            self.release_staging()
            self._staging = self._new_staging(size_bytes)
        return self._staging

    def _new_staging(self, size_bytes: int) -> Buffer:
        wanted_bytes = max(1 << 16, 1 << (size_bytes - 1).bit_length())
        staging = self._native.create_buffer(wanted_bytes, READBACK)
        errors = self._native.sink.take()
        if errors:
            self._native.release_buffer(staging)
            reason = "; ".join(message for _, message in errors)
            raise OutOfMemoryError(f"WebGPU out of memory. A download takes {size_bytes} bytes: {reason}")
        return Buffer(staging, wanted_bytes)

    def release_staging(self) -> None:
        """Gives the staging buffers back that are not in use."""
        idle = self._spare if self._staging is None else [*self._spare, self._staging]
        for buffer in idle:
            self._native.release_buffer(buffer.handle)
        self._staging, self._spare = None, []
        self.uploads.release_idle()

    def close(self) -> None:
        """Releases all staging buffers: nobody waits for what is underway any more."""
        self.release_staging()
        for buffer in self._underway:
            self._native.release_buffer(buffer.handle)
        self._underway.clear()
        self.uploads.close()
