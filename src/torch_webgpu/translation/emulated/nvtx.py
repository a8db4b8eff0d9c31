"""NVTX ranges as ranges of ``torch.profiler``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch.profiler import record_function


class _Open(threading.local):
    """The ranges that a thread has pushed."""

    def __init__(self) -> None:
        self.pushed: list[record_function] = []


_open = _Open()
_started: dict[int, record_function] = {}
_numbers = count(1)


def _begin(msg: str) -> record_function:
    begun = record_function(str(msg))
    begun.__enter__()
    return begun


def range_push(msg: str) -> int:
    """Opens a range inside this thread's others; returns how many were open."""
    _open.pushed.append(_begin(msg))
    return len(_open.pushed) - 1


def range_pop() -> int:
    """Closes this thread's innermost range; returns how many stay open, and -1 if none was."""
    if not _open.pushed:
        return -1
    _open.pushed.pop().__exit__(None, None, None)
    return len(_open.pushed)


def range_start(msg: str) -> int:
    """Opens a range that any code may close with :func:`range_end`; returns its number."""
    number = next(_numbers)
    _started[number] = _begin(msg)
    return number


def range_end(range_id: int) -> None:
    """Closes it."""
    if (begun := _started.pop(range_id, None)) is not None:
        begun.__exit__(None, None, None)


def mark(msg: str) -> None:
    """A range of no length."""
    with record_function(str(msg)):
        pass


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range around a block or a function; the message is formatted with the arguments."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
