"""What takes long is said while it does, once, and nothing else is."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from torch_webgpu.runtime import slow
from torch_webgpu.runtime.slow import SlowWatch


class Log(logging.Handler):
    """Lets a test wait until something was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.said.append(record.getMessage())
            self.changed.notify()

    def wait_for(self, count: int, what: str = "") -> bool:
        """Whether it happens that ``count`` messages begin with ``what``."""
        with self.changed:
            return self.changed.wait_for(lambda: sum(text.startswith(what) for text in self.said) >= count, 30)


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(slow, "NOTICE_S", 0.05)
    handler = Log()
    slow.logger.addHandler(handler)
    yield handler
    slow.logger.removeHandler(handler)


def test_what_takes_long_is_said_while_it_does(log):
    watch = SlowWatch()
    with watch("compiling a"):
        assert log.wait_for(1)
        with watch("compiling b"):
            assert log.wait_for(2)
        time.sleep(0.15)
    assert log.said == ["compiling a has taken 0 s so far", "compiling b has taken 0 s so far"]


def test_what_is_quick_is_not_said(log, monkeypatch):
    monkeypatch.setattr(slow, "NOTICE_S", 30)
    watch = SlowWatch()
    for _ in range(100):
        with watch("quick"):
            pass
    monkeypatch.setattr(slow, "NOTICE_S", 0.05)
    assert not watch._pending
    assert not log.said


def test_the_thread_ends_when_there_is_nothing_to_look_for_and_starts_again(log, monkeypatch):
    monkeypatch.setattr(slow, "IDLE_S", 0.01)
    watch = SlowWatch()
    for count in (1, 2):
        with watch("compiling"):
            thread = watch._thread
            assert log.wait_for(count)
        thread.join(30)
        assert not thread.is_alive()
        assert watch._thread is None


def test_an_exception_ends_the_watch(log):
    watch = SlowWatch()
    with pytest.raises(ZeroDivisionError), watch("failing"):
        raise ZeroDivisionError
    assert not watch._pending
