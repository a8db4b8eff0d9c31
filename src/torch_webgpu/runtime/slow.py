"""Says what takes long while it does: a compiler that is busy for a minute must not look like a program that hangs.

What is said goes to the logger ``torch_webgpu``, which Python prints to stderr unless the program decides otherwise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

NOTICE_S = 2.0
IDLE_S = 5.0
"""How long the thread that looks at the clock stays when there is nothing to look for."""

logger = logging.getLogger("torch_webgpu")


class SlowWatch:
    """``with watch(text): …`` logs the text, once, if that is not over after ``NOTICE_S``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: dict[object, tuple[float, str]] = {}  # when each is to be said, the earliest first
        self._idle = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def __call__(self, text: str) -> Iterator[None]:
        """``text`` is completed by how long it has taken so far."""
        token = object()
        with self._changed:
            self._pending[token] = (monotonic() + NOTICE_S, text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="webgpu-slow", daemon=True)
                self._thread.start()
            elif self._idle:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._pending.pop(token, None)

    def _look(self) -> None:
        while (text := self._next()) is not None:
            logger.warning("%s has taken %.0f s so far", text, NOTICE_S)

    def _next(self) -> str | None:
        """What is due, when it is; None when there has been nothing for a while, and the thread is to end."""
        with self._changed:
            while True:
                if not self._pending:
                    self._idle = True
                    self._changed.wait(IDLE_S)
                    self._idle = False
                    if not self._pending:
                        self._thread = None
                        return None
                token, (due, text) = next(iter(self._pending.items()))
                left = due - monotonic()
                if left <= 0:
                    del self._pending[token]
                    return text
                self._changed.wait(left)
