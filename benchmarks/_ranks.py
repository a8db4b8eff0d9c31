"""Processes that are the ranks of a group: what rank 0 yields comes back, what any raises is printed whole."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

Row = dict[str, Any]
Body = Callable[..., Iterator[Row]]
GRACE_S = 5
"""For the other ranks, once one has failed."""


class RanksError(RuntimeError):
    """A rank has failed; its traceback was printed."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """That of processes which are started inside: they read some of it before anything can be told to them."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def life(body: Body, arguments: tuple[Any, ...], connection: Connection) -> None:
    """Of one rank: tells its rows, then None."""
    try:
        for row in body(*arguments):
            if os.environ["RANK"] == "0":
                connection.send(row)
        connection.send(None)
    except BaseException:
        print(f"rank {os.environ['RANK']}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        raise


def rows_of_ranks(
    count: int, body: Body, *arguments: Any, limit_s: float = 600, variables: Mapping[str, str] | None = None
) -> Iterator[Row]:
    """What ``body(*arguments)`` yields on rank 0 of ``count`` processes, which have the environment of torchrun.

    RanksError where one ends otherwise than by finishing, and after ``limit_s``.
    """
    context, port, processes, connections = get_context("spawn"), free_port(), [], []
    for rank in range(count):
        ours, theirs = context.Pipe()
        own = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "RANK": str(rank),
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count), **(variables or {}),
        }  # fmt: skip
        process = context.Process(target=life, args=(body, arguments, theirs), daemon=True)
        with environment(own):
            process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)
    try:
        yield from _received(connections, time.monotonic() + limit_s)
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            process.kill()


def _received(connections: list[Connection], end_s: float) -> Iterator[Row]:
    waiting, failed = list(connections), False
    while waiting:
        left_s = GRACE_S if failed else end_s - time.monotonic()
        ready = wait(waiting, max(left_s, 0))
        if not ready:
            raise RanksError("a rank failed" if failed else f"{len(waiting)} ranks were not done in time")
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                row = connection.recv()
            except (EOFError, ConnectionError):
                row, failed = None, True
            if row is None:
                waiting.remove(connection)
            else:
                yield row
    if failed:
        raise RanksError("a rank failed")
