"""What programs of several ranks leave behind, however they end: no process, no shared memory, no temporary file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

MARK = "RANKS_OF_TEST"
"""The environment variable by which a test's processes are known, and those that they start."""
SHARED_MEMORY = Path("/dev/shm")
PROCESSES = Path("/proc")
PATIENCE_S = 20.0
"""How long a process may take to be gone from the system's list once it has been killed."""


class Remains:
    """Looks for them. ``environment`` is to be that of the test's processes."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.before = self.shared_files()
        self.environment = {MARK: self.mark, "TMPDIR": str(self.folder), "TEMP": str(self.folder)}

    def assert_none(self) -> None:
        """AssertionError with what is there. Processes and /dev/shm are looked at where the system has them (Linux)."""
        until = time.monotonic() + PATIENCE_S
        while (running := list(self.processes())) and time.monotonic() < until:
            time.sleep(0.1)
        files = sorted(self.folder.rglob("*"))
        shared = {name for name in self.shared_files() - self.before if not is_held(name)}
        shutil.rmtree(self.folder)
        assert not running, f"these go on: {running}"
        assert not files, f"temporary files: {files}"
        assert not shared, f"in {SHARED_MEMORY}: {shared}"

    def processes(self) -> Iterator[str]:
        for process in PROCESSES.glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes():
                    yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended meanwhile, or is somebody else's
                continue

    @staticmethod
    def shared_files() -> set[str]:
        return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def is_held(name: str) -> bool:
    """Whether a process has the file of shared memory open or mapped: it is another program's, which runs meanwhile."""
    path = str(SHARED_MEMORY / name)
    if not os.path.exists(path):
        return True
    for process in PROCESSES.glob("[0-9]*"):
        try:
            held = {os.readlink(file) for file in (process / "fd").iterdir()}
            if path in held or path in (process / "maps").read_text():
                return True
        except OSError:
            continue
    return False
