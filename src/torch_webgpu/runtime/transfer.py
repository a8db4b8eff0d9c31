"""Bytes between host and GPU: uploads through the queue, downloads batched through one staging buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_webgpu.errors import OutOfMemoryError, WebGPUError
from torch_webgpu.runtime.buffers import Buffer
from torch_webgpu.runtime.calls import encode_transfer
from torch_webgpu.runtime.commands import Copy
from torch_webgpu.runtime.implementation import READBACK

if TYPE_CHECKING:
    from torch_webgpu.runtime.implementation import NativeDevice

_CHUNK_BYTES = 64 << 20  # what one staging buffer holds: enough for full speed, little enough to keep

Request = tuple[Buffer, int, int]  # buffer, offset in bytes, number of bytes


class Parts:
    """What one staging buffer brings to the host: its size in bytes, and from where to where."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.pieces: list[tuple[Buffer, int, int, np.ndarray]] = []  # source, first byte, bytes of whole words, target

    def add(self, buffer: Buffer, offset: int, words: int, target: np.ndarray) -> None:
        self.pieces.append((buffer, offset, words, target))
        self.size_bytes += words

    def copies(self, staging: Buffer) -> list[Copy]:
        """What the GPU does first."""
        copies, position = [], 0
        for buffer, offset, words, _ in self.pieces:
            copies.append(Copy(buffer, offset & ~3, staging, position, words))
            position += words
        return copies

    def take(self, mapped: Any) -> None:
        """What the host does when the staging buffer is mapped."""
        host = np.frombuffer(mapped, np.uint8)
        position = 0
        for _, offset, words, target in self.pieces:
            first = position + offset % 4
            target[:] = host[first : first + target.size]
            position += words


class Readback:
    """A download underway, or a part of one: what it brings, and the staging buffer it goes through."""

    __slots__ = ("parts", "staging")

    def __init__(self, parts: Parts, staging: Buffer) -> None:
        self.parts = parts
        self.staging = staging

    @property
    def copies(self) -> list[Copy]:
        """What the GPU does first."""
        return self.parts.copies(self.staging)


class Transfer:
    """Uploads and downloads of one device."""

    def __init__(self, native: NativeDevice) -> None:
        self._native = native
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

    def download(self, requests: Sequence[Request], into: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """Waits for the submitted work and returns the bytes of each request, as uint8 arrays.

        The first of them are ``into``, which have the right sizes; the caller owns the others.
        """
        results, reads = self._plan(requests, into)
        for read in reads:
            readback = Readback(read, self._staging_buffer(read.size_bytes))
            encoder = self._native.create_encoder()
            for copy in readback.copies:
                encode_transfer(self._native, encoder, copy)
            if self._native.run(encoder):
                self.finish(readback)
        return results

    def begin(self, requests: Sequence[Request], into: Sequence[np.ndarray]) -> Readback | None:
        """A download ``into`` these arrays whose copies the caller submits itself, before :meth:`finish`.

        None for more than one staging buffer holds. There may be no other download in between.
        """
        _, reads = self._plan(requests, into)
        return Readback(reads[0], self._staging_buffer(reads[0].size_bytes)) if len(reads) == 1 else None

    def begin_apart(self, request: Request, into: np.ndarray) -> list[Readback]:
        """:meth:`begin`, but with staging buffers of its own: others may come in between.

        The array is the caller's to keep until each part is finished.
        """
        begun: list[Readback] = []
        try:
            for read in self._plan([request], [into])[1]:
                begun.append(Readback(read, self._spare_staging(read.size_bytes)))
                self._underway.add(begun[-1].staging)
        except OutOfMemoryError:
            for readback in begun:
                self._underway.remove(readback.staging)
                self._spare.append(readback.staging)
            raise
        return begun

    def finish(self, readback: Readback) -> None:
        """Waits until a part of a download is there, and writes it where it belongs."""
        mapped = self._native.map(readback.staging.handle, readback.parts.size_bytes)
        if mapped is not None:  # else the reason is among the device's errors, which the caller raises
            readback.parts.take(mapped)
            self._native.unmap(readback.staging.handle)
            if readback.staging in self._underway:
                self._underway.remove(readback.staging)
                self._spare.append(readback.staging)

    def _spare_staging(self, size_bytes: int) -> Buffer:
        fitting = [buffer for buffer in self._spare if size_bytes <= buffer.size_bytes <= max(4 * size_bytes, 1 << 16)]
        if fitting:
            self._spare.remove(fitting[0])
            return fitting[0]
        return self._new_staging(size_bytes)

    @staticmethod
    def _plan(requests: Sequence[Request], into: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[Parts]]:
        """The results of a download, and what fills them, each through one staging buffer."""
        results = list(into)
        for k, (buffer, offset, nbytes) in enumerate(requests):
            if offset < 0 or nbytes < 0 or offset + nbytes > buffer.size_bytes:
                raise WebGPUError(f"download of {nbytes} bytes at {offset} from {buffer}")
            if k >= len(into):
                results.append(np.empty(nbytes, np.uint8))
        reads = [Parts()]
        for (buffer, offset, nbytes), result in zip(requests, results, strict=True):
            done = 0
            while done < nbytes:
                if reads[-1].size_bytes >= _CHUNK_BYTES - 4:
                    reads.append(Parts())
                at = offset + done
                part = min(nbytes - done, _CHUNK_BYTES - reads[-1].size_bytes - at % 4)
                reads[-1].add(buffer, at, -(-(at % 4 + part) // 4) * 4, result[done : done + part])
                done += part
        return results, [read for read in reads if read.pieces]

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

    def close(self) -> None:
        """Releases all staging buffers: nobody waits for what is underway any more."""
        self.release_staging()
        for buffer in self._underway:
            self._native.release_buffer(buffer.handle)
        self._underway.clear()
