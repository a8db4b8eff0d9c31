"""The current adapter of each thread: what a bare ``"webgpu"`` stands for."""

from __future__ import annotations

import threading

_state = threading.local()


def current_device() -> int:
    """The index that a bare ``"webgpu"`` stands for in this thread; 0 until it is set."""
    return getattr(_state, "index", 0)


def set_current_device(index: int) -> None:
    _state.index = index
