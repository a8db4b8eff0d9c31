"""How long dispatches take on the GPU, by timestamp queries around a compute pass each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_webgpu.errors import WebGPUError
from torch_webgpu.runtime import ffi
from torch_webgpu.runtime.commands import Command, Dispatch

if TYPE_CHECKING:
    from torch_webgpu.runtime.buffers import BufferPool
    from torch_webgpu.runtime.encoder import Encoder
    from torch_webgpu.runtime.ffi import NativeDevice
    from torch_webgpu.runtime.transfer import Transfer

_QUERIES = 4096  # the most a query set holds; a dispatch takes two
_STAMP_BYTES = 8


class Timer:
    """Runs dispatches one pass each and reads the GPU's clock before and after."""

    def __init__(self, native: NativeDevice, pool: BufferPool, encoder: Encoder, transfer: Transfer) -> None:
        self._native, self._pool, self._encoder, self._transfer = native, pool, encoder, transfer
        self._queries: Any = None

    def time(self, commands: Sequence[Command]) -> list[int]:
        """Runs ``commands``, all dispatches, and returns how long each took in nanoseconds."""
        if not all(isinstance(command, Dispatch) for command in commands):
            raise WebGPUError("only dispatches can be timed")
        if self._queries is None:
            self._queries = self._native.create_timestamps(_QUERIES)
        step = _QUERIES // 2
        return [ns for at in range(0, len(commands), step) for ns in self._time(commands[at : at + step])]

    def _time(self, commands: Sequence[Command]) -> list[int]:
        for index, command in enumerate(commands):
            begin = partial(self._native.begin_timed_pass, query_set=self._queries, first_query=2 * index)
            self._encoder.submit((command,), begin)
        size = 2 * _STAMP_BYTES * len(commands)
        stamps = self._pool.allocate(size)
        try:
            encoder = self._native.create_encoder()
            ffi.resolve_query_set(encoder, self._queries, 0, 2 * len(commands), stamps.handle, 0)
            self._native.run(encoder)
            (raw,) = self._transfer.download([(stamps, 0, size)])
        finally:
            self._pool.release(stamps)
        period_ns = self._native.timestamp_period_ns()
        return [round((int(end) - int(begin)) * period_ns) for begin, end in raw.view(np.uint64).reshape(-1, 2)]
