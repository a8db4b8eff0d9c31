"""The memory of captured graphs: pools that graphs share, what a graph holds of others', when it goes back."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch_webgpu.runtime.private_pool import PrivatePool
    from torch_webgpu.runtime.runtime import Buffer, Device

PoolHandle = tuple[int, int]
"""Names a memory pool of graphs, as ``torch.cuda.graph_pool_handle`` does."""


class Releasable(Protocol):
    """A graph, or a capture underway."""

    def release(self) -> None:
        """Gives its memory back."""


class Graphs:
    """The process's pools of graph memory, and the graphs that nobody holds any more."""

    def __init__(self) -> None:
        self.discarded: deque[Releasable] = deque()  # filled by destructors, which may run anywhere
        self._pools: dict[tuple[PoolHandle, int], PrivatePool] = {}
        self._numbers = count(1)

    def new_handle(self) -> PoolHandle:
        return 0, next(self._numbers)

    def pool(self, handle: PoolHandle, device: Device) -> PrivatePool:
        """The pool of that name on a device, new unless a graph holds it."""
        self._pools = {key: pool for key, pool in self._pools.items() if pool.in_use}
        key = handle, device.index
        found = self._pools.get(key)
        if found is None or not device.has_pool(found):
            found = self._pools[key] = device.private_pool()
        return found

    def collect(self) -> None:
        """Returns the memory of discarded graphs."""
        while self.discarded:
            self.discarded.popleft().release()


class Reservation:
    """The memory of one graph: its share in a private pool, and the buffers of others that it names."""

    def __init__(self, device: Device, pool: PrivatePool) -> None:
        self.device = device
        self.pool = pool
        self._pinned: dict[Buffer, None] = {}
        self._constants: list[Buffer] = []
        pool.retain()

    def pin(self, buffer: Buffer) -> None:
        """Keeps a buffer from outside as long as the graph lives, even if its tensor dies."""
        if buffer.owner is not self.pool and buffer not in self._pinned:
            self._pinned[buffer] = None
            self.device.pin(buffer)

    def constant(self, size_bytes: int) -> Buffer:
        """Memory that nothing in the graph writes."""
        self._constants.append(self.device.allocate(size_bytes))
        return self._constants[-1]

    def release(self) -> None:
        """Gives everything back. The device is the one it came from."""
        for buffer in self._pinned:
            self.device.unpin(buffer)
        for buffer in self._constants:
            self.device.release(buffer)
        self._pinned, self._constants = {}, []
        self.pool.drop()
