"""The slots of a rank: which are free to be copied into, and which the others may still read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

KEPT_FREE = 2
"""How many slots are never filled before a collective's turn: that whose turn it is gets on with them."""


class Ring:
    """``least_read``: how far all other ranks' GPUs have read, as a number that grows (see ``Board.least``)."""

    def __init__(self, count: int, least_read: Callable[[], int]) -> None:
        self._least_read = least_read
        self._lock = threading.Lock()
        self._free = list(range(count))
        self._lent: deque[tuple[int, int]] = deque()

    def add(self, slots: Iterable[int]) -> None:
        """More of them."""
        with self._lock:
            for slot in slots:
                heappush(self._free, slot)

    def take(self, ahead: bool) -> int | None:
        """A free slot, the first of them: memory that was never used costs nothing. None if there is none.

        ``ahead``: for a collective whose turn has not come.
        """
        with self._lock:
            read = self._least_read()
            while self._lent and self._lent[0][0] <= read:
                heappush(self._free, self._lent.popleft()[1])
            return heappop(self._free) if len(self._free) > (KEPT_FREE if ahead else 0) else None

    def lend(self, slot: int, until: int) -> None:
        """The others read it now, and it is free when they have read so far. Called with growing numbers."""
        with self._lock:
            self._lent.append((until, slot))

    def first_free_at(self) -> int:
        """How far the others will have read when the next slot comes free; 0 if none is lent."""
        with self._lock:
            return self._lent[0][0] if self._lent else 0

    def give_back(self, slot: int) -> None:
        """Nobody reads it."""
        with self._lock:
            heappush(self._free, slot)
