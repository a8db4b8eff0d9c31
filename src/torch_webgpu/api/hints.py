"""*Did you mean*, and what to do about shapes, after errors of PyTorch's own that end a program: ``x.to("webpgu")``.

A device's name is read in C++, before any code of a backend's. Looking at each call would cost each a Python frame, so
that the error is looked at where Python prints it, if nobody has handled it. The error itself stays as it is. Programs
that have not used the device keep Python's own hooks, and get no hint.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch_webgpu.errors import meant_by

from .shape_hints import shape_hint

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def add_hint(error: BaseException | None) -> None:
    """Adds to an error what was probably meant, or what helps, as a note, which is printed below its message."""
    if not isinstance(error, RuntimeError) or hasattr(error, "__notes__"):
        return
    message = str(error)
    if hint := meant_by(message).strip(" ()") or shape_hint(message):
        error.add_note(hint)


def hinting(before: Hook) -> Hook:
    """``sys.excepthook``, with hints."""

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        add_hint(error)
        before(kind, error, traceback)

    return show


def hinting_in_threads(before: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``threading.excepthook``, with hints."""

    def show(arguments: Any) -> None:
        add_hint(arguments.exc_value)
        before(arguments)

    return show
