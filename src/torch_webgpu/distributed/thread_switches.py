"""How long a thread waits for the interpreter while another one records: less than usual where a GPU waits for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_S = 0.0005
"""Python's is 5 ms. A collective's thread asks for the interpreter some ten times; its GPU may be idle meanwhile."""
_lock = threading.Lock()
_users = 0
_usual_s = _short_s = 0.0


@contextmanager
def short_thread_switches() -> Iterator[None]:
    """Has threads that want the interpreter wait for :data:`SHORT_S` at most. The program's setting comes back."""
    global _users, _usual_s, _short_s
    with _lock:
        _users += 1
        if _users == 1:
            _usual_s = sys.getswitchinterval()
            if _usual_s > SHORT_S:
                sys.setswitchinterval(SHORT_S)
            _short_s = sys.getswitchinterval()  # in whole microseconds
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and sys.getswitchinterval() == _short_s:  # nobody has set another one meanwhile
                sys.setswitchinterval(_usual_s + 5e-7)  # it drops what is no whole microsecond
