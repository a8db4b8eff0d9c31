"""Ranks of PyTorch's multi-process tests that go on to the next test: opening an adapter takes most of a short test.

A process in which a test failed, or which it changed for good, ends with it.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

METHOD = "forkserver"
GENTLE_S = 5


class Kept:
    """A process that runs one function after another."""

    def __init__(self) -> None:
        self.connection, theirs = get_context(METHOD).Pipe()
        self.process = get_context(METHOD).Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join(GENTLE_S)
        self.process.kill()


kept: dict[int, Kept] = {}
"""By rank."""


@atexit.register
def end_all() -> None:
    for process in kept.values():
        process.end()
    kept.clear()


class KeptProcess:
    """What PyTorch's harness takes for a process of its own: a function's run in one that is kept.

    ``args[0]`` is the rank. ``exitcode`` is None as long as it runs.
    """

    def __init__(self, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._task = target, args, kwargs
        self._rank = int(args[0])
        self._code: int | None = None
        self.name = name

    def start(self) -> None:
        """Hands the function over."""
        self._kept = kept.pop(self._rank, None) or Kept()
        self.pid = self._kept.process.pid
        self._kept.connection.send((dict(os.environ), *self._task))

    @property
    def exitcode(self) -> int | None:
        """What the function ended with; None as long as it runs."""
        if self._code is None:
            alive = self._kept.process.is_alive()
            if self._kept.connection.poll():
                with suppress(EOFError, OSError):
                    self._code, goes_on = self._kept.connection.recv()
                    if goes_on:
                        kept[self._rank] = self._kept
            elif not alive:
                self._code = self._kept.process.exitcode
        return self._code

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None:
            self._kept.connection.poll(timeout)

    def terminate(self) -> None:
        """Ends the process, if the function runs yet."""
        if self.exitcode is None:
            self._kept.process.kill()
            self._kept.process.join()

    kill = terminate


def serve(connection: Connection) -> None:
    """The life of a process that is kept."""
    from . import harness

    harness.translate_if_asked()
    while (task := connection.recv()) is not None:
        environment, target, args, kwargs = task
        os.environ.clear()
        os.environ.update(environment)
        code = run(target, args, kwargs)
        goes_on = code != 10 and not leaves_traces()
        sys.stdout.flush()
        connection.send((code, goes_on))
        if not goes_on:
            return


def run(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The exit code that a process of its own would have had."""
    try:
        target(*args, **kwargs)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # a process ends with any
        traceback.print_exc()
        return 1
    return 0


def leaves_traces() -> bool:
    """Whether a test changed what the next would notice. What can be put back is."""
    import torch.distributed as dist
    from torch.distributed.tensor import _random

    if dist.is_initialized():
        return True
    _random._rng_tracker = None
    torch._dynamo.reset()
    torch.webgpu.set_device(0)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    return False
