"""A program under ``torch-webgpu serve``, in a process of its own, and what it is told and says."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0


class Served:
    """``torch-webgpu serve *arguments``. ``link``: what it invites with."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "torch_webgpu.cli", "serve", "--timeout", "60", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8",
        )  # fmt: skip
        self.lines: list[str] = []
        self._queue: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.link = self.until(r"https?://\S+#token=\S+")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def until(self, pattern: str) -> str:
        """Waits for a line with this in it; what was found."""
        while True:
            try:
                line = self._queue.get(timeout=WAIT_S)
            except Empty:
                line = None
            assert line is not None, f"no {pattern!r} in:\n{''.join(self.lines)}"
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[0]

    def say(self, text: str = "") -> None:
        """A line for the program to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Waits for the program; all it said."""
        status = self.process.wait(WAIT_S * 8)
        while (line := self._queue.get(timeout=WAIT_S)) is not None:
            self.lines.append(line)
        told = "".join(self.lines)
        assert status == 0, told
        return told

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def state(page: Any, name: str) -> str:
    """Waits until the page is in a state; what it says."""
    page.wait_for_selector(f"html[data-state={name}]")
    return page.inner_text("#status")
