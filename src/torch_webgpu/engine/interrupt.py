"""Ctrl-C waits: an interrupted flush would leave tensors without values and the engine out of step with the GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from signal import SIGINT
from threading import get_ident, main_thread
from types import TracebackType
from typing import Any

# The C module: signal.signal's conversion of its arguments to enums takes ten times as long, at every flush.
_signal: Any = import_module("_signal")
_main_thread = main_thread()


class Uninterrupted:
    """Context manager: a SIGINT that arrives in the main thread inside the block is handled at its end.

    Blocks may be nested; only the outermost takes the two system calls.
    """

    __slots__ = ("_arrived", "_handler")
    _inside = False  # of the main thread

    def __enter__(self) -> None:
        self._handler: Callable[..., object] | None = None
        self._arrived: tuple[object, ...] | None = None
        if get_ident() != _main_thread.ident or Uninterrupted._inside:
            return
        handler = _signal.getsignal(SIGINT)
        if callable(handler):
            self._handler = handler
            _signal.signal(SIGINT, self._note)
            Uninterrupted._inside = True

    def _note(self, *arguments: object) -> None:
        self._arrived = arguments

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            Uninterrupted._inside = False
            _signal.signal(SIGINT, self._handler)
            if self._arrived is not None:
                self._handler(*self._arrived)
