"""The interpreter's time for one thread, which is shorter while a collective is underway."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from torch_webgpu.distributed.thread_switches import SHORT_S, short_thread_switches


@pytest.fixture
def usual() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_many_uses_leave_it_as_it_was(usual: float) -> None:
    for microseconds in (4100, 5000, 777):
        sys.setswitchinterval(microseconds / 1e6 + 5e-7)
        before = sys.getswitchinterval()
        for _ in range(100):
            with short_thread_switches():
                pass
        assert sys.getswitchinterval() == before


def test_it_is_short_inside_and_as_before_afterwards(usual: float) -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with short_thread_switches():
            entered.set()
            may_leave.wait(60)

    thread = threading.Thread(target=other)
    with short_thread_switches():
        thread.start()
        entered.wait(60)
        assert sys.getswitchinterval() == pytest.approx(SHORT_S, abs=1e-6)
    assert sys.getswitchinterval() == pytest.approx(SHORT_S, abs=1e-6)  # another is inside
    may_leave.set()
    thread.join()
    assert sys.getswitchinterval() == usual


def test_what_the_program_sets_stays(usual: float) -> None:
    with short_thread_switches():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002, abs=1e-6)
    sys.setswitchinterval(0.0001)
    with short_thread_switches():
        assert sys.getswitchinterval() == pytest.approx(0.0001, abs=1e-6)
    assert sys.getswitchinterval() == pytest.approx(0.0001, abs=1e-6)


def test_an_error_inside_brings_it_back(usual: float) -> None:
    with pytest.raises(ValueError, match="inside"), short_thread_switches():
        raise ValueError("inside")
    assert sys.getswitchinterval() == usual
