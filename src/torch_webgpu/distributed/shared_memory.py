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
TEXT_AT, TEXT_BYTES = 2048, 512
"""Where a page has its texts: two of what is called, the last one of why the rank gave up."""
ARRIVED, COPIED, REDUCED, READ, FAILED, TOKEN, LACKS, _, SLOT_NUMBERS = range(9)
"""The numbers of a page: the collective that the rank is in; how far it has copied, has reduced, and has read (see
:func:`progress`); whether it has given up; in the first page, the number by which the others know the memory;
whether the rank lacked slots before a collective, two of them; from the last one on, in which its chunks are."""
STEP_BITS = 32
GONE = "rank {rank} is gone: its process {pid} has ended"


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


def host_bytes() -> int:
    """The memory of this host."""
    total: int = linux.sysconf("SC_PAGE_SIZE") * linux.sysconf("SC_PHYS_PAGES")
    return total


def progress(number: int, steps: int) -> int:
    """As one number, which only grows: so many steps of collective ``number`` are done."""
    return number << STEP_BITS | steps


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
                os.truncate(descriptor, size)  # pages come when they are used, by a process or a GPU
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
