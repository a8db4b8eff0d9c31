"""Processes that are the ranks of one group, started once for many tests: a start costs seconds.

A test's body is a function of a module, decorated with :func:`on_ranks`: every rank runs it. What one raises fails the
test, and the processes are started anew, since the others may be anywhere.
"""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

TIMEOUT_S = 45
"""After which gloo gives up a collective."""
LONGEST_TEST_S = 150
GRACE_S = 5
"""For the other ranks, once one has failed."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def serve(connection: Connection, backend: str | None, environment: dict[str, str]) -> None:
    """The life of a rank: bodies by name, until there are no more."""
    os.environ |= environment
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    while (task := connection.recv()) is not None:
        module, name, arguments = task
        torch.manual_seed(0)
        try:
            getattr(importlib.import_module(module), name).body(**arguments)
            dist.barrier()
        except BaseException:
            connection.send(f"rank {dist.get_rank()}:\n{traceback.format_exc()}")
        else:
            connection.send(None)
    dist.destroy_process_group()


class Ranks:
    """``count`` processes in one group, each with the adapter of its rank if there are so many."""

    def __init__(self, count: int, backend: str | None = None, **environment: str) -> None:
        self.count, self._backend, self._environment = count, backend, environment
        self._processes: list[Any] = []
        self._connections: list[Connection] = []

    def run(self, module: str, name: str, arguments: dict[str, Any]) -> None:
        """Has every rank run a body. Raises AssertionError with what went wrong on any."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((module, name, arguments))
        failures, waiting = [], list(self._connections)
        while waiting:
            ready = wait(waiting, GRACE_S if failures else LONGEST_TEST_S)
            if not ready:
                failures.append(f"{len(waiting)} of {self.count} ranks were not done")
                break
            for connection in ready:
                waiting.remove(connection)
                try:
                    failure = connection.recv()
                except EOFError:
                    failure = "a rank's process ended"
                if failure is not None:
                    failures.append(failure)
        if failures:
            self.stop(at_once=True)
            raise AssertionError("\n\n".join(failures))

    def _start(self) -> None:
        context, port = get_context("spawn"), free_port()
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            environment = self._environment | {
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(self.count), "RANK": str(rank),
                "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.count), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            process = context.Process(target=serve, args=(theirs, self._backend, environment), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def stop(self, at_once: bool = False) -> None:
        """Ends the processes."""
        for process, connection in zip(self._processes, self._connections, strict=True):
            if at_once:
                process.kill()
            else:
                connection.send(None)
        codes = []
        for process in self._processes:
            process.join(30)
            codes.append(process.exitcode)
            process.kill()
        self._processes, self._connections = [], []
        assert at_once or set(codes) <= {0}, f"the ranks ended with {codes}"


def on_ranks(body: Callable[..., None]) -> Callable[..., None]:
    """A test that every rank of the fixture ``ranks`` runs, with the test's parameters."""

    def test(ranks: Ranks, **arguments: Any) -> None:
        ranks.run(body.__module__, body.__name__, arguments)

    test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
    test.body = body  # type: ignore[attr-defined]
    parameters = inspect.signature(body).parameters.values()
    first = inspect.Parameter("ranks", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    return test
