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
"""How long a process may take to be gone from the system's list once it has been killed, and a file."""


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
        shared = self.shared_files() - self.before - held()
        while shared and time.monotonic() < until:
            time.sleep(0.1)
            shared &= self.shared_files() - held()  # others make semaphores there, which have names for a moment
        files = sorted(self.folder.rglob("*"))
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


def held() -> set[str]:
    """The files of shared memory that a process has open or mapped: another program's, which runs meanwhile."""
    names: set[str] = set()
    for process in PROCESSES.glob("[0-9]*"):
        try:
            paths = [os.readlink(file) for file in (process / "fd").iterdir()]
            paths += [line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()]
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
        names |= {Path(path).name for path in paths if path.startswith(f"{SHARED_MEMORY}/")}
    return names
