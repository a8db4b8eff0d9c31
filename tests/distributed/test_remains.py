"""The checker of what ranks leave behind finds each kind; all tests that use ``run_ranks`` and ``torchrun`` ask it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.distributed.remains import SHARED_MEMORY, Remains

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and /dev/shm")


def run(script: str, remains: Remains) -> None:
    subprocess.run([sys.executable, "-c", script], env=os.environ | remains.environment, check=True)


def test_nothing() -> None:
    remains = Remains()
    run("import tempfile; tempfile.TemporaryFile()", remains)
    remains.assert_none()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.distributed.remains.PATIENCE_S", 0.0)


@linux
def test_a_process(hurried: None) -> None:
    remains = Remains()
    script = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
                         start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
child.stdout.readline()  # its environment can be read from now on
print(child.pid)
"""
    started = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | remains.environment, check=True, capture_output=True, text=True
    )
    try:
        with pytest.raises(AssertionError, match=r"these go on: .*time.sleep"):
            remains.assert_none()
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)


def test_a_temporary_file() -> None:
    remains = Remains()
    run("import tempfile; tempfile.mkstemp(prefix='left-')", remains)
    with pytest.raises(AssertionError, match=r"temporary files: .*left-"):
        remains.assert_none()


@linux
def test_shared_memory(hurried: None) -> None:
    remains = Remains()
    run(f"open('{SHARED_MEMORY}/ranks-of-test', 'w').close()", remains)
    try:
        with pytest.raises(AssertionError, match="ranks-of-test"):
            remains.assert_none()
    finally:
        os.unlink(SHARED_MEMORY / "ranks-of-test")
