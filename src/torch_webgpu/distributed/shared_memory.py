"""Memory that the ranks of a group on one host share: how they find it, how they tell each other where they are.

Rank 0 makes it by ``memfd_create``, and the others open it through ``/proc``. It never has a name in a file system, and
is gone when the last process that has it mapped is, however that ended. Each rank has a page of numbers and texts that
it alone writes; the rest is the slots through which tensors go.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch_webgpu.engine.sync import pause

linux: Any = os
poller: Any = select
"""Names of these modules that other systems have not: AttributeError there, which :meth:`Process.own` answers."""
PAGE_BYTES = 4096
ALIGNED_BYTES = 1 << 16
"""Where the slots begin: pages have as many bytes on some machines."""
TEXT_AT, TEXT_BYTES = 256, 512
"""Where a page has its texts: two of what is called, the last one of why the rank gave up."""
ARRIVED, COPIED, REDUCED, FAILED, TOKEN = range(5)
"""The numbers of a page: the collective that the rank is in; the chunks that it has written, and has reduced; whether
it has given up; in the first page, the number by which the others know the memory."""
GONE = "rank {rank} is gone: its process {pid} has ended"
LOOK_S = 0.02
"""How often a wait looks whether its peers are alive."""


@dataclass(frozen=True)
class Process:
    """A rank's process: on which host, in which namespace its number is one, and why it does not take part, if so."""

    host: str
    boot: str
    namespace: str
    pid: int
    refusal: str = ""

    @classmethod
    def own(cls, refusal: str) -> Process:
        """This one. Refuses where the system has not what it takes."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            namespace = os.readlink("/proc/self/ns/pid")
            os.close(linux.pidfd_open(os.getpid()))
            os.close(linux.memfd_create("torch-webgpu"))
        except (OSError, AttributeError) as error:
            refusal, boot, namespace = refusal or f"the system has no shared memory for it: {error}", "", ""
        return cls(socket.gethostname(), boot, namespace, os.getpid(), refusal)

    @property
    def place(self) -> tuple[str, str, str]:
        return self.host, self.boot, self.namespace


def exchanged(
    store: Any, key: str, rank: int, size: int, value: dict[str, Any], timeout: timedelta, peers: Peers | None = None
) -> list[Any]:
    """What each rank has under a key, in their order. Waits for all of them, for so long."""
    store.set(f"{key}/{rank}", json.dumps(value))
    keys = [f"{key}/{other}" for other in range(size)]
    wait_for(store, keys, timeout, peers)
    return [json.loads(store.get(k)) for k in keys]


def wait_for(store: Any, keys: list[str], timeout: timedelta, peers: Peers | None = None) -> None:
    """Waits until all keys are there. RuntimeError where they are not in time, or a peer has ended before.

    It asks time and again: while ``store.wait`` waits nobody else in this process can use the store, and two threads
    that connect two groups would wait for each other's ranks for ever.
    """
    begin = time.perf_counter()
    while True:
        ended = peers.ended() if peers else []
        if store.check(keys):  # asked later: it may have set its key, and ended
            return
        for rank, pid in ended:
            raise RuntimeError(GONE.format(rank=rank, pid=pid))
        if time.perf_counter() - begin > timeout.total_seconds():
            missing = ", ".join([key for key in keys if not store.check([key])])
            raise RuntimeError(f"Timed out waiting {1000 * timeout.total_seconds():.0f}ms for {missing}")
        pause(begin)


def processes(store: Any, rank: int, size: int, refusal: str, timeout: timedelta) -> list[Process]:
    """Those of all ranks."""
    told = exchanged(store, "process", rank, size, asdict(Process.own(refusal)), timeout)
    return [Process(**one) for one in told]


def why_not(all_processes: Sequence[Process]) -> str:
    """Why these do not exchange through shared memory; empty if they can."""
    for rank, process in enumerate(all_processes):
        if process.refusal:
            return f"rank {rank}: {process.refusal}"
    return "" if len({p.place for p in all_processes}) == 1 else "its ranks are on several hosts, or in containers"


class Peers:
    """Whether the processes of a group are alive."""

    def __init__(self, all_processes: Sequence[Process], rank: int) -> None:
        self._watch, self._ranks = poller.poll(), {}
        for other, process in enumerate(all_processes):
            if other != rank:
                descriptor = linux.pidfd_open(process.pid)
                self._watch.register(descriptor, poller.POLLIN)
                self._ranks[descriptor] = other, process.pid

    def ended(self) -> list[tuple[int, int]]:
        """The ranks, and the numbers of the processes, that are no more."""
        return [self._ranks[descriptor] for descriptor, _ in self._watch.poll(0)]

    def close(self) -> None:
        """Looks no more."""
        for descriptor in self._ranks:
            self._watch.unregister(descriptor)
            os.close(descriptor)
        self._ranks = {}


class SharedMemory:
    """``pages`` of each rank, then ``slots``: what a GPU imports."""

    def __init__(self, descriptor: int, ranks: int, slots_bytes: int) -> None:
        self._mapped = mmap.mmap(descriptor, self.size_bytes(ranks, slots_bytes))
        whole = memoryview(self._mapped)
        self.slots = whole[len(whole) - slots_bytes :]
        self._bytes = whole
        self._numbers = whole.cast("Q")

    def close(self) -> bool:
        """Unmaps it, unless a device has it still. Whether it is unmapped."""
        try:
            for view in (self.slots, self._numbers, self._bytes):
                view.release()
            self._mapped.close()
        except BufferError:
            return False
        return True

    @staticmethod
    def size_bytes(ranks: int, slots_bytes: int) -> int:
        """Of the whole."""
        return -(-ranks * PAGE_BYTES // ALIGNED_BYTES) * ALIGNED_BYTES + slots_bytes

    @classmethod
    def shared(
        cls,
        store: Any,
        all_processes: Sequence[Process],
        rank: int,
        slots_bytes: int,
        timeout: timedelta,
        peers: Peers,
    ) -> SharedMemory:
        """That of a group. Every rank calls this; OSError, on all, if one of them cannot have it."""
        ranks, descriptor, memory, problem = len(all_processes), -1, None, ""
        size, token = cls.size_bytes(ranks, slots_bytes), secrets.randbits(63)
        if rank == 0:
            try:
                descriptor = linux.memfd_create("torch-webgpu")
                linux.posix_fallocate(descriptor, 0, size)
                memory = cls(descriptor, ranks, slots_bytes)
                memory.set_number(0, TOKEN, token)
            except OSError as error:
                problem = str(error)
            store.set("memory", json.dumps({"descriptor": descriptor, "token": token, "problem": problem}))
        wait_for(store, ["memory"], timeout, peers)
        told = json.loads(store.get("memory"))
        problem = told["problem"]
        try:
            if rank and not problem:
                path = f"/proc/{all_processes[0].pid}/fd/{told['descriptor']}"
                descriptor = os.open(path, linux.O_RDWR | linux.O_CLOEXEC)
                if os.fstat(descriptor).st_size != size:
                    raise OSError(f"{path} has not {size} bytes")
                memory = cls(descriptor, ranks, slots_bytes)
                if memory.number(0, TOKEN) != told["token"]:
                    raise OSError(f"{path} is another group's")
        except OSError as error:
            problem = str(error)
        problems = exchanged(store, "mapped", rank, ranks, {"problem": problem}, timeout, peers)
        if descriptor >= 0:
            os.close(descriptor)
        for one in problems:
            if one["problem"]:
                raise OSError(one["problem"])
        assert memory is not None
        return memory

    def number(self, rank: int, which: int) -> int:
        """A number of a rank's page."""
        value: int = self._numbers[rank * PAGE_BYTES // 8 + which]
        return value

    def set_number(self, rank: int, which: int, value: int) -> None:
        """Tells the others a number, after whatever was written before."""
        self._numbers[rank * PAGE_BYTES // 8 + which] = value

    def text(self, rank: int, which: int) -> str:
        """A text of a rank's page."""
        at = rank * PAGE_BYTES + TEXT_AT + which * TEXT_BYTES
        return bytes(self._bytes[at : at + TEXT_BYTES]).rstrip(b"\0").decode(errors="replace")

    def set_text(self, rank: int, which: int, text: str) -> None:
        """Writes a text, as far as there is room."""
        at = rank * PAGE_BYTES + TEXT_AT + which * TEXT_BYTES
        self._bytes[at : at + TEXT_BYTES] = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")


class Board:
    """What one rank tells and learns through the pages of a :class:`SharedMemory`."""

    def __init__(self, memory: SharedMemory, rank: int, size: int, peers: Peers, timeout: timedelta) -> None:
        self._memory, self._rank, self._size, self._peers = memory, rank, size, peers
        self.timeout_s = timeout.total_seconds()
        self._others = [other for other in range(size) if other != rank]
        self.given_up = ""
        """Why nothing can be exchanged any more."""

    def compare(self, number: int, called: str) -> None:
        """This rank is in a collective, and calls this. Waits for all to arrive; RefusedError if they call another."""
        self._memory.set_text(self._rank, number % 2, called)
        self._memory.set_number(self._rank, ARRIVED, number)
        self.wait(ARRIVED, number)
        for other in self._others:
            theirs = self._memory.text(other, number % 2)
            if theirs != called:
                raise RefusedError(
                    f"mismatched collectives: rank {other} calls {theirs}, rank {self._rank} calls {called}"
                )

    def tell(self, which: int, value: int) -> None:
        """This rank has got so far."""
        self._memory.set_number(self._rank, which, value)

    def give_up(self, reason: str) -> None:
        """Has all ranks end with an error."""
        self.given_up = self.given_up or reason
        self._memory.set_text(self._rank, 2, self.given_up)
        self._memory.set_number(self._rank, FAILED, 1)

    def close(self) -> bool:
        """Unmaps the pages, and the slots. See :meth:`SharedMemory.close`."""
        return self._memory.close()

    def wait(self, which: int, value: int) -> None:
        """Until all ranks have got so far. RuntimeError if one never will, or not in time."""
        begin = looked = time.perf_counter()
        memory, waiting = self._memory, self._others
        while waiting := [other for other in waiting if memory.number(other, which) < value]:
            now = time.perf_counter()
            if now - looked > LOOK_S:
                looked = now
                ended = self._peers.ended()  # before their numbers are read once more
                waiting = [other for other in waiting if memory.number(other, which) < value]
                self.look(ended, waiting)
                if waiting and now - begin > self.timeout_s:
                    ranks = ", ".join(map(str, waiting))
                    raise RuntimeError(
                        f"Timed out waiting {1000 * self.timeout_s:.0f}ms for rank {ranks} of {self._size}"
                    )
            pause(begin)

    def look(self, ended: Sequence[tuple[int, int]] = (), waiting: Sequence[int] = ()) -> None:
        """RuntimeError if this rank or one that is waited for has given up, or has ended."""
        if self.given_up:
            raise RuntimeError(self.given_up)
        for rank, pid in ended:
            if rank in waiting:
                raise RuntimeError(GONE.format(rank=rank, pid=pid))
        for rank in waiting:
            if self._memory.number(rank, FAILED):
                raise RuntimeError(f"rank {rank} gave up: {self._memory.text(rank, 2)}")


class RefusedError(RuntimeError):
    """What all ranks refuse to do, each by itself: they go on together."""
