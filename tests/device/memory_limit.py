"""An adapter with less memory than it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.implementation import BUFFER


@contextmanager
def memory_limit(size_bytes: int) -> Iterator[None]:
    """An adapter that refuses buffers when it has given out ``size_bytes`` more than now, as wgpu reports it."""
    torch.webgpu.empty_cache()
    native = engine().device(0).opened.native
    create, release = native.create_buffer, native.release_buffer
    sizes: dict[object, int] = {}

    def limited(size: int, usage: int) -> object:
        if usage == BUFFER and sum(sizes.values()) + size > size_bytes:
            native.sink.errors.append(("out of memory", "Not enough memory left."))
        handle = create(size, usage)
        sizes[handle] = size
        return handle

    def released(handle: object) -> None:
        sizes.pop(handle, None)
        release(handle)

    native.create_buffer, native.release_buffer = limited, released
    try:
        yield
    finally:
        native.create_buffer, native.release_buffer = create, release
