"""Signals wait: one whose handler raised in the middle of a flush would leave tensors without values, commands half
encoded and the engine out of step with the GPU; raised in a callback of the GPU's library it would even be swallowed.

Python runs the handlers of signals in the main thread, between any two steps of the code there. Recording an operation
bears that: its order of steps leaves nothing half done, whether a handler raises or uses the device itself. Whatever
talks to the GPU, or takes longer, puts off the handlers to its end. A wait ends when the work that was submitted is
done, as one for a CUDA stream does.
"""

from __future__ import annotations

import signal as _signals
from collections import deque
from collections.abc import Callable
from importlib import import_module
from threading import get_ident, main_thread
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

# The C module: signal.signal's conversion of its arguments to enums takes ten times as long, at every flush.
_signal: Any = import_module("_signal")
_getsignal, _set_handler = _signal.getsignal, _signal.signal
_MAIN_THREAD = main_thread().ident
_NUMBERS = tuple(sorted(int(number) for number in _signals.valid_signals()))
_USUAL = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
LOOK_S = 0.001
"""How often all signals are looked at, of which there are 64: other than the usual ones have no handler as a rule."""

Handler = Callable[[int, FrameType | None], object]

_handlers: dict[int, Handler] = {}
"""The handlers that :func:`_note` has taken the place of, now or before."""
_arrived: deque[tuple[int, FrameType | None]] = deque()


class _MainThread:
    """Whether the main thread is in a block, and the signals that programs handle: the usual ones, and whatever else a
    handler of Python's was seen for.
    """

    def __init__(self) -> None:
        self.is_inside = False
        self._numbers = [int(getattr(_signals, name)) for name in _USUAL if hasattr(_signals, name)]
        self._last: tuple[list[Any], list[tuple[int, Handler]]] = [], []  # their handlers; of these Python's
        self._all: list[Any] = []  # the handlers of all signals, when they were last looked at
        self._next_look_s = 0.0

    def put_off_handlers(self) -> bool:
        """Puts :func:`_note` in the place of all handlers and begins the block, unless a signal came in between.

        Its handler may have used the device, in blocks of its own whose ends put the handlers back.
        """
        if monotonic() >= self._next_look_s:
            self._look_at_all()
        handlers = list(map(_getsignal, self._numbers))
        before, theirs = self._last
        if handlers != before:
            theirs = [(n, handler) for n, handler in zip(self._numbers, handlers) if _is_pythons(handler)]
            self._last = handlers, theirs
        for number, handler in theirs:
            if handler is not _note:
                _handlers[number] = handler
                _set_handler(number, _note)
        complete = False
        try:
            self.is_inside = True
            for number, _ in theirs:
                if _getsignal(number) is not _note:
                    break
            else:
                complete = True
        finally:
            if not complete:
                self.is_inside = False
        return complete

    def _look_at_all(self) -> None:
        """Finds out which signals have a handler of Python's beside the usual ones."""
        self._next_look_s = monotonic() + LOOK_S
        handlers = list(map(_getsignal, _NUMBERS))
        if handlers != self._all:
            found = [n for n, handler in zip(_NUMBERS, handlers) if _is_pythons(handler)]
            self._numbers += [n for n in found if n not in self._numbers]
            self._all = handlers


def _is_pythons(handler: Any) -> bool:
    """SIG_DFL and SIG_IGN are integers, and None stands for a handler that is not Python's."""
    return handler.__class__ is not int and handler is not None


_main = _MainThread()


class Uninterrupted:
    """Context manager: signals that arrive in the main thread inside the block are handled at its end.

    Blocks may be nested; only the outermost does anything. It goes around the engine's lock, which is free again when
    the handlers run.
    """

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        self._is_outermost = not _main.is_inside and get_ident() == _MAIN_THREAD
        if self._is_outermost:
            while not _main.put_off_handlers():
                pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_outermost:
            _main.is_inside = False
            try:
                # Any step from here on may be interrupted by a handler, which may use the device in blocks of its own.
                for number, handler in tuple(_handlers.items()):
                    if _getsignal(number) is _note:
                        _set_handler(number, handler)
            finally:
                if _arrived:
                    _deliver()


def _note(number: int, frame: FrameType | None) -> None:
    """The handler of signals inside a block."""
    _arrived.append((number, frame))
    if not _main.is_inside:
        _deliver()


def _deliver() -> None:
    """Handles what has arrived, in order; what the handlers raise is raised when all were called."""
    while _arrived:
        number, frame = _arrived.popleft()
        handler = _getsignal(number)
        if handler is _note:
            handler = _handlers[number]
        if callable(handler):
            try:
                handler(number, frame)
            except BaseException:
                _deliver()
                raise
