"""Collectives of ranks on one host, through memory that all have mapped and their GPUs have imported.

A collective goes in chunks. For each, every rank's GPU writes the rank's slot; when all have, each GPU reads the slots
of all, and reduces them. GPUs never wait for each other: the processes do, by numbers in the shared pages that each
writes when its GPU's work is done. The collectives of a group run in the order of the calls, each in the thread that
is to finish it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch_webgpu.config import config
from torch_webgpu.engine.imported import (
    host_memory_tensor,
    release_host_memory,
    submit,
    takes_host_memory,
    wait_until,
)
from torch_webgpu.engine.sync import pause

from .shared_check import Check
from .shared_memory import (
    COPIED,
    REDUCED,
    Board,
    Peers,
    RefusedError,
    SharedMemory,
    exchanged,
    processes,
    why_not,
)
from .shared_slots import Chunked, Slots
from .timeline import ISSUED, READ
from .timeline import REDUCED as ALL_REDUCED
from .torch_c10d import PrefixStore

_log = logging.getLogger("torch_webgpu")
SLOT_BYTES = 8 << 20
"""Of one rank's part of a chunk."""
CHECK_S = 60.0
"""How long the first exchange may take, whatever the group's timeout: kernels are compiled meanwhile, by all ranks."""
RELEASE_S = 2.0
"""How long it is tried to unmap memory. Else that is done when nobody has it any more."""


class Chunks(Protocol):
    """A collective as a link runs it."""

    def chunked(self) -> Sequence[Chunked]:
        """What it exchanges, tensor by tensor."""

    def called(self) -> str:
        """What has to be the same on all ranks. RefusedError for what no rank can do."""

    def reached(self, step: str) -> None:
        """A step was done just now."""


class Link:
    """What one group's ranks, all on one host, exchange through."""

    def __init__(self, board: Board, slots: Slots, peers: Peers, rank: int, index: int) -> None:
        self._board, self._slots, self._peers, self.rank, self.index = board, slots, peers, rank, index
        self.ranks, self.slot_bytes = slots.ranks, slots.slot_bytes
        self._turn = threading.Condition()
        self._tickets = self._served = 0
        self._number = self._chunk = 0
        self._deadline_s: float | None = None

    def ticket(self) -> int:
        """The place of a collective that is issued now."""
        with self._turn:
            self._tickets += 1
            return self._tickets

    def run(self, ticket: int, collective: Chunks) -> None:
        """Runs a collective when all before it are done. RuntimeError where it, or one before it, is given up."""
        try:
            with self._turn:
                while self._served != ticket - 1 and not self._board.given_up:
                    self._turn.wait(0.05)  # which Ctrl-C ends
            self._board.look()
            self._number += 1
            collective.reached(ISSUED)
            self._run(collective)
        except RefusedError:  # by all ranks
            raise
        except BaseException as error:
            self._board.give_up(str(error) or type(error).__name__)
            raise
        finally:
            with self._turn:
                self._served += 1
                self._turn.notify_all()

    def _run(self, collective: Chunks) -> None:
        board, first = self._board, self._chunk
        steps = [(one, number) for one in collective.chunked() for number in range(one.chunks)]
        written = [self._write(*steps[0], first)] if steps else []
        board.compare(self._number, collective.called())
        for at, (one, number) in enumerate(steps):
            if at + 1 < len(steps):
                written.append(self._write(*steps[at + 1], first + at + 1))
            wait_until(written[at], self._look)
            if not at:
                collective.reached(READ)
            self._tell(COPIED, first + at)
            if one.is_reduced_in_parts:
                one.reduce_part(self._slots, first + at, number)
                wait_until(submit(self.index), self._look)
                self._tell(REDUCED, first + at)
            else:
                board.tell(REDUCED, first + at + 1)
            if at + 1 == len(steps):
                collective.reached(ALL_REDUCED)
            one.read(self._slots, first + at, number)
            submit(self.index)
        self._chunk += len(steps)

    def _write(self, one: Chunked, number: int, chunk: int) -> Callable[[], bool]:
        one.write(self._slots, chunk, number)
        return submit(self.index)

    def _tell(self, which: int, chunk: int) -> None:
        """Tells that the GPU has done this with a chunk, and waits until all others' have."""
        self._board.tell(which, chunk + 1)
        self._board.wait(which, chunk + 1)

    def _look(self) -> None:
        self._board.look()
        if self._deadline_s is not None and time.perf_counter() > self._deadline_s:
            raise RuntimeError("the adapter was not done in time")

    def check(self, seconds: float) -> None:
        """Exchanges numbers that all ranks know. RuntimeError where others come, or none in so many seconds."""
        board, check = self._board, Check(self._slots, self.rank, self.index)
        usual_s = board.timeout_s
        board.timeout_s, self._deadline_s = seconds, time.perf_counter() + seconds
        self.run(self.ticket(), check)
        check.look()
        board.timeout_s, self._deadline_s = usual_s, None

    def abort(self) -> None:
        """Has everything underway end with an error, on all ranks."""
        self._board.give_up("the process group was aborted")

    def close(self) -> None:
        """Lets the memory go. Nothing is underway."""
        self._board.give_up("the process group was destroyed")
        self._peers.close()
        del self._slots
        begin = time.perf_counter()
        release_host_memory(self.index)
        while not self._board.close() and time.perf_counter() - begin < RELEASE_S:
            pause(begin)  # the adapter says later that it has let the memory go
            release_host_memory(self.index)


def connect(store: Any, rank: int, size: int, index: int, timeout: timedelta) -> tuple[Link | None, str]:
    """The transport of a process group's ranks; None, and why, where they go on through gloo.

    Every rank calls this at its first collective, and all get the same answer. ``store``: what is of this group alone.
    ``index``: the device's.
    """
    refusal = ""
    if size == 1:
        return None, "it is alone"
    if not config().shared_memory:
        refusal = "TORCH_WEBGPU_SHARED_MEMORY is 0"
    elif not takes_host_memory(index):
        refusal = "its adapter does not take host memory (host-mapped-pointer)"
    store = PrefixStore("shared/", store)
    everybody = processes(store, rank, size, refusal, timeout)
    if reason := why_not(everybody):
        return None, reason
    peers = Peers(everybody, rank)
    slots_bytes = Slots.size_bytes(size, SLOT_BYTES)
    try:
        memory = SharedMemory.shared(store, everybody, rank, slots_bytes, timeout, peers)
    except OSError as error:
        peers.close()
        return None, str(error)
    board, problem, link = Board(memory, rank, size, peers, timeout), "", None
    try:
        slots = Slots(host_memory_tensor(index, memory.slots), size, SLOT_BYTES)
        link = Link(board, slots, peers, rank, index)
        del slots
    except RuntimeError as error:
        problem = f"rank {rank}: {error}"
        board.give_up(problem)
    if link is not None:
        try:
            link.check(CHECK_S)
        except RuntimeError as error:
            problem = f"rank {rank}: the first exchange went wrong: {error}"
    longest = max(timeout, timedelta(seconds=2 * CHECK_S))  # others may have begun later
    told = exchanged(store, "checked", rank, size, {"problem": problem}, longest, peers)
    problems = [one["problem"] for one in told if one["problem"]]
    if not problems:
        return link, ""
    _log.warning("collectives go through gloo, and not through shared memory: %s", "; ".join(problems))
    if link is not None:
        link.close()
    else:
        peers.close()
        memory.close()
    return None, problems[0]
