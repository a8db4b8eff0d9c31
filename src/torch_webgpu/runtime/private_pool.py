"""Memory that captured graphs keep to themselves: a graph's replay writes where its capture did, so nobody else may."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .buffers import Buffer, BufferPool, Exchange


class PrivatePool:
    """Buffers set apart from a device's pool for the graphs that share this one.

    What is released here is handed out again to later parts of a capture, and to later captures, but never to anyone
    else while one of the graphs is there. ``Device.release`` sends a buffer where it came from (``Buffer.owner``).
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._free: dict[int, list[Buffer]] = {}
        self._users = 0
        self.reserved_bytes = 0

    @property
    def in_use(self) -> bool:
        """Whether a graph or a capture holds the pool."""
        return self._users > 0

    def is_part_of(self, pool: BufferPool) -> bool:
        """Whether its memory comes from that pool."""
        return self._pool is pool

    def retain(self) -> None:
        """One more graph uses the pool."""
        self._users += 1

    def drop(self) -> None:
        """One graph fewer; with the last one the memory goes back to the device, tensors' when they die."""
        self._users -= 1
        if not self._users:
            free, self._free = self._free, {}
            for buffers in free.values():
                for buffer in buffers:
                    self._give_back(buffer)

    def allocate(self, size_bytes: int, make_room: bool = True) -> Buffer:
        """A buffer of at least ``size_bytes``, like :meth:`BufferPool.allocate`."""
        free = self._free.get(self._pool.capacity(size_bytes))
        if free:
            return free.pop()
        buffer = self._pool.allocate(size_bytes, make_room)
        buffer.owner = self
        self.reserved_bytes += buffer.size_bytes
        return buffer

    def exchange(self, steps: Sequence[Exchange], before: Sequence[Buffer | None]) -> list[Buffer | None]:
        """Takes and gives back memory, like :meth:`BufferPool.exchange`."""
        buffers = [*before]
        done = 0
        try:
            for number, capacity in steps:
                buffer = buffers[number]
                if not capacity:
                    assert buffer is not None
                    self._pool.give_back(buffer)
                elif buffer is None:
                    buffers[number] = self.allocate(capacity, make_room=False)
                done += 1
        except BaseException:
            self._pool.undo_exchange(steps[:done], before, buffers)
            raise
        return buffers

    def release(self, buffer: Buffer) -> None:
        """Takes a buffer back."""
        if self._users:
            self._free.setdefault(buffer.size_bytes, []).append(buffer)
        else:
            self._give_back(buffer)

    def retake(self, buffer: Buffer) -> None:
        """Undoes a :meth:`release`."""
        self._free[buffer.size_bytes].remove(buffer)

    def _give_back(self, buffer: Buffer) -> None:
        buffer.owner = None
        self.reserved_bytes -= buffer.size_bytes
        self._pool.release(buffer)
