"""An adapter's device while it is open: the native one, and what works on it."""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter

from torch_webgpu.caches import Cache
from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import ERROR_FLAG_BYTES
from torch_webgpu.target import Target

from .buffers import BufferPool
from .captured_graph import EncodedGraph
from .commands import ClearBuffer
from .encoder import Encoder
from .host_memory import machine_budget
from .implementation import BUFFER, Adapter
from .imported_memory import ImportedMemory
from .pipelines import PipelineCache
from .prepared import MAX_COMMANDS, Prepared
from .private_pool import PrivatePool
from .timing import Timer
from .transfer import Transfer


class Opened:
    """What each part of it made, :meth:`close` releases, whatever it was used for."""

    def __init__(self, adapter: Adapter, target: Target) -> None:
        try:
            self.native = adapter.open()
        except RuntimeError as error:
            raise WebGPUError(f"{adapter.info['device']} refuses to open: {error}") from None
        self.prepared: Cache[Hashable, Prepared] = Cache(
            "prepared submissions", MAX_COMMANDS, weigh=attrgetter("commands")
        )
        """By whatever callers tell submissions apart by. None stays that names a pipeline or a bind group which is
        gone: whoever releases one clears all.
        """
        self.pipelines = PipelineCache(self.native, target, self.prepared.clear)
        budget = machine_budget() if target.software else None
        largest = adapter.limits["max-buffer-size"]
        self.pool = BufferPool(self.native, BUFFER, largest, self.pipelines.forget, budget)
        self.imported = ImportedMemory(self.native, self.pipelines.forget)
        self.memory: BufferPool | PrivatePool = self.pool
        """Where memory is taken from now."""
        self.encoder = Encoder(self.native, self.pipelines, adapter.limits)
        self.transfer = Transfer(self.native)
        self.timer = Timer(self.native, self.pool, self.encoder, self.transfer)
        self.graphs: set[EncodedGraph] = set()  # that are not released
        try:
            self.error_buffer = self.pool.allocate(ERROR_FLAG_BYTES)
            self.encoder.submit((ClearBuffer(self.error_buffer, 0, self.error_buffer.size_bytes),))
        except BaseException:
            self.close()
            raise

    def release_imported(self) -> None:
        """Lets the host memory of released buffers go, and waits for the adapter."""
        self.imported.retire()
        # Dawn lets go what was released before a submission when that is done.
        buffer = self.pool.allocate(ERROR_FLAG_BYTES)
        try:
            self.encoder.submit((ClearBuffer(buffer, 0, buffer.size_bytes),))
        finally:
            self.pool.release(buffer)
        self.native.poll(wait=True)

    def close(self) -> None:
        """Releases everything, and the device."""
        for graph in tuple(self.graphs):
            graph.release()
        self.pipelines.close()
        self.pool.close()
        self.imported.close()
        self.encoder.close()
        self.transfer.close()
        self.timer.close()
        self.native.close()
