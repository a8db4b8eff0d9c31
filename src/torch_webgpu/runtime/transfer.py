"""Bytes between host and GPU: uploads through the queue, downloads batched through one staging buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_webgpu.errors import OutOfMemoryError, WebGPUError
from torch_webgpu.runtime import ffi

if TYPE_CHECKING:
    from torch_webgpu.runtime.buffers import Buffer
    from torch_webgpu.runtime.ffi import NativeDevice

_CHUNK_BYTES = 64 << 20  # what one staging buffer holds: enough for full speed, little enough to keep

Request = tuple["Buffer", int, int]  # buffer, offset in bytes, number of bytes


class Transfer:
    """Uploads and downloads of one device."""

    def __init__(self, native: NativeDevice) -> None:
        self._native = native
        self._pending_bytes = 0
        self._staging: Any = None
        self._staging_bytes = 0

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
        results = list(into)
        for k, (buffer, offset, nbytes) in enumerate(requests):
            if offset < 0 or nbytes < 0 or offset + nbytes > buffer.size_bytes:
                raise WebGPUError(f"download of {nbytes} bytes at {offset} from {buffer}")
            if k >= len(into):
                results.append(np.empty(nbytes, np.uint8))
        batch: list[tuple[Buffer, int, int, np.ndarray]] = []  # source, first word, bytes of whole words, destination
        batch_bytes = 0
        for (buffer, offset, nbytes), result in zip(requests, results, strict=True):
            done = 0
            while done < nbytes:
                at = offset + done
                part = min(nbytes - done, _CHUNK_BYTES - batch_bytes - at % 4)
                words = -(-(at % 4 + part) // 4) * 4
                batch.append((buffer, at, words, result[done : done + part]))
                batch_bytes += words
                done += part
                if batch_bytes >= _CHUNK_BYTES - 4:
                    self._read_back(batch, batch_bytes)
                    batch, batch_bytes = [], 0
        if batch:
            self._read_back(batch, batch_bytes)
        return results

    def _read_back(self, batch: Sequence[tuple[Buffer, int, int, np.ndarray]], total_bytes: int) -> None:
        native = self._native
        staging = self._staging_buffer(total_bytes)
        encoder = native.create_encoder()
        position = 0
        for buffer, at, words, _ in batch:
            ffi.copy_buffer(encoder, buffer.handle, at & ~3, staging, position, words)
            position += words
        mapped = native.map(staging, total_bytes) if native.run(encoder) else None
        if mapped is None:
            return  # the reason is among the device's errors, which the caller raises
        host = np.frombuffer(mapped, np.uint8)
        position = 0
        for _, at, words, destination in batch:
            first = position + at % 4
            destination[:] = host[first : first + destination.size]
            position += words
        ffi.unmap(staging)

    def _staging_buffer(self, size_bytes: int) -> Any:
        if size_bytes > self._staging_bytes:
            self.release_staging()
            wanted_bytes = max(1 << 16, 1 << (size_bytes - 1).bit_length())
            staging = self._native.create_buffer(wanted_bytes, ffi.READBACK)
            errors = self._native.sink.take()
            if errors:
                self._native.release_buffer(staging)
                reason = "; ".join(message for _, message in errors)
                raise OutOfMemoryError(f"webgpu: no memory for a download of {size_bytes} bytes: {reason}")
            self._staging, self._staging_bytes = staging, wanted_bytes
        return self._staging

    def release_staging(self) -> None:
        """Gives the staging buffer back."""
        if self._staging is not None:
            self._native.release_buffer(self._staging)
            self._staging, self._staging_bytes = None, 0
