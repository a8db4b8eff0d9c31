"""What the ranks of a group tell each other through the pages of their shared memory: how far each has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch_webgpu.engine.sync import pause

from .shared_memory import ARRIVED, FAILED, GONE, LACKS, SLOT_NUMBERS, STEP_BITS, Peers, SharedMemory

LOOK_S = 0.02
"""How often a wait looks whether its peers are alive."""


class RefusedError(RuntimeError):
    """What all ranks refuse to do, each by itself: they go on together."""


class Board:
    """What one rank tells and learns. ``chunks``: how many slots it has at most."""

    def __init__(
        self, memory: SharedMemory, rank: int, size: int, chunks: int, peers: Peers, timeout: timedelta
    ) -> None:
        self._memory, self._rank, self._size, self._chunks, self._peers = memory, rank, size, chunks, peers
        self.timeout_s = timeout.total_seconds()
        self._others = [other for other in range(size) if other != rank]
        self.given_up = ""
        """Why nothing can be exchanged any more."""

    def compare(self, number: int, called: str, meanwhile: Callable[[], None]) -> None:
        """This rank is in a collective, and calls this. Waits for all to arrive; RefusedError if they call another."""
        memory = self._memory
        memory.set_text(self._rank, number % 2, called)
        memory.set_number(self._rank, ARRIVED, number)
        self.wait(ARRIVED, number, meanwhile)
        called = memory.text(self._rank, number % 2)  # as far as there was room
        for other in self._others:
            theirs = memory.text(other, number % 2)
            if theirs != called:
                raise RefusedError(
                    f"mismatched collectives: rank {other} calls {theirs}, rank {self._rank} calls {called}"
                )

    def tell_lack(self, number: int, lacks: bool) -> None:
        """Whether this rank had no slot for what it would have copied before collective ``number``, its next one."""
        self._memory.set_number(self._rank, LACKS + number % 2, lacks)

    def any_lacks(self, number: int) -> bool:
        """Whether any rank has told so. All are in this collective, and get the same answer until the next."""
        return any(self._memory.number(rank, LACKS + number % 2) for rank in range(self._size))

    def tell(self, which: int, value: int) -> None:
        """This rank has got so far."""
        self._memory.set_number(self._rank, which, value)

    def tell_slot(self, number: int, step: int, slot: int) -> None:
        """The slot of this rank in which a step's chunk of collective ``number`` is, in which the rank is."""
        self._memory.set_number(self._rank, self._at(number, step), slot)

    def slots(self, number: int, step: int) -> list[int]:
        """The slots of all ranks in which they have told this step's chunks to be, and to be copied."""
        return [self._memory.number(rank, self._at(number, step)) for rank in range(self._size)]

    def _at(self, number: int, step: int) -> int:
        # No rank is two collectives ahead of another, and none has more chunks at once than slots.
        return SLOT_NUMBERS + number % 2 * self._chunks + step % self._chunks

    def give_up(self, reason: str) -> None:
        """Has all ranks end with an error."""
        self.given_up = self.given_up or reason
        self._memory.set_text(self._rank, 2, self.given_up)
        self._memory.set_number(self._rank, FAILED, 1)

    def close(self) -> bool:
        """Unmaps the pages, and the slots. See :meth:`SharedMemory.close`."""
        return self._memory.close()

    def least(self, which: int) -> int:
        """How far all other ranks have got."""
        return min(self._memory.number(other, which) for other in self._others)

    def steps(self, which: int) -> int:
        """How many steps all other ranks have done of the collective in which they are."""
        return self.least(which) & ((1 << STEP_BITS) - 1)

    def wait(self, which: int, value: int, meanwhile: Callable[[], None]) -> None:
        """Until all ranks have got so far. RuntimeError if one never will, or not in time."""
        begin = looked = time.perf_counter()
        memory, waiting = self._memory, self._others
        while waiting := [other for other in waiting if memory.number(other, which) < value]:
            meanwhile()
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
