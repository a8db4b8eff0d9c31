"""Carries collectives through shared memory: which ones, and what each exchanges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from .announced import AnnouncedExchange
from .reductions import REDUCED, CollectiveReduction
from .shared_connect import connect
from .shared_link import Link, Underway
from .shared_slots import AllGather, AllReduce, Broadcast, Chunked, ReduceScatter
from .staging import Staged, describe
from .thread_switches import short_thread_switches
from .transport import Exchange, Request, flat

_log = logging.getLogger("torch_webgpu")
HOST_BYTES = 1 << 16
"""Collectives of no more are reduced by the CPU: the device would take two submissions, and a wait between them."""


def carries(name: str, reduces: bool, tensors: Sequence[Any], ranks: int) -> bool:
    """Whether a collective goes through shared memory. All ranks answer alike: by what is the same on all of them."""
    if name not in EXCHANGES:
        return False
    every = list(flat(tensors))
    dtypes = {t.dtype for t in every}
    if not every or len(dtypes) > 1 or any(t.layout != torch.strided for t in every):
        return False
    if reduces and not dtypes <= REDUCED:
        return False
    if len(tensors) == 1:
        return True
    # gloo has words for sizes that do not fit.
    outputs, inputs = (t if isinstance(t, (list, tuple)) else [t] for t in tensors)
    wide, narrow = (inputs, outputs) if "scatter" in name else (outputs, inputs)
    if name == "allgather_coalesced_":
        wide = [[of_rank[k] for of_rank in wide] for k in range(len(narrow))]
    return len(wide) == len(narrow) and all(
        [part.numel() for part in whole] == ranks * [one.numel()]
        if isinstance(whole, (list, tuple))
        else whole.numel() == ranks * one.numel()
        for whole, one in zip(wide, narrow, strict=True)
    )


def element_type(dtype: torch.dtype) -> torch.dtype:
    """What tensors are moved as: their own dtype where kernels have it, else bytes."""
    return dtype if dtype in REDUCED and dtype != torch.bool else torch.uint8


class PreparedOnHost:
    """Tensors of the CPU in one dimension, which come from those of a device, and go back to it."""

    def __init__(self) -> None:
        self._staged: list[Staged] = []

    def source(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor that is read."""
        return self._on_host(t, True, False)

    def target(self, t: torch.Tensor, is_read: bool = False) -> torch.Tensor:
        """A tensor that is written, and read first perhaps."""
        return self._on_host(t, is_read, True)

    def _on_host(self, t: torch.Tensor, into: bool, out_of: bool) -> torch.Tensor:
        memory = torch.empty(t.nbytes, dtype=torch.uint8, device="cpu")
        self._staged.append(Staged(t, into, out_of, reduces=False, memory=memory))
        return memory.view(element_type(t.dtype))

    def read(self) -> None:
        """Waits until those that are read are there."""
        for staged in self._staged:
            staged.read()

    def write_back(self) -> None:
        """Uploads those that are written."""
        for staged in self._staged:
            staged.write()


class Prepared:
    """Tensors in one dimension for an exchange, and what is to be written back into those that are strided."""

    def __init__(self) -> None:
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor that is read."""
        return self._flat(t.data.resolve_conj().resolve_neg().contiguous())

    def target(self, t: torch.Tensor, is_read: bool = False) -> torch.Tensor:
        """A tensor that is written, and read first perhaps."""
        if t.is_contiguous() and not (t.is_conj() or t.is_neg()):
            return self._flat(t.data)
        copy = t.data.resolve_neg().contiguous() if is_read else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        self._copied.append((t.data, copy))
        return self._flat(copy)

    @staticmethod
    def _flat(t: torch.Tensor) -> torch.Tensor:
        return t.view(-1).view(element_type(t.dtype))

    def write_back(self) -> None:
        """Copies into the strided ones."""
        for t, copy in self._copied:
            t.copy_(copy)

    def read(self) -> None:
        """Nothing has to come from elsewhere."""


class SharedMemoryTransport:
    """Carries collectives among ranks on one host whose adapters take host memory; none else.

    ``store``: what is of this process group alone.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        self._store, self._rank, self._size, self._longest, self._name = store, rank, size, timeout, name
        self._lock = threading.Lock()
        self._link: Link | None = None
        self.refusal: str | None = None
        """Why it carries nothing; None where it does, and before the first collective."""

    def begin(self, request: Request) -> SharedExchange | None:
        """The first call waits for all ranks. Inputs may be read later: nobody may write them before the end."""
        collective = request.collective
        if not carries(collective.name, collective.reduces, request.tensors, request.group.size):
            return None
        index = next(flat(request.tensors)).device.index
        link = self._connected(index)
        if link is not None and link.index != index:
            raise RuntimeError(
                f"{self._name} exchanges tensors of webgpu:{link.index} through shared memory, and these are on "
                f"webgpu:{index}. With TORCH_WEBGPU_SHARED_MEMORY=0 gloo carries those of any device"
            )
        return None if link is None else SharedExchange(request, link)

    def in_order(self, request: Request, exchange: Exchange) -> Exchange:
        """Another transport's exchange of this group, which takes its turn, and of which the other ranks are told."""
        link = self._link
        if link is None or request.collective.is_of_two or isinstance(exchange, SharedExchange):
            return exchange
        return AnnouncedExchange(request, exchange, link)

    def _connected(self, index: int) -> Link | None:
        if self._link is None and self.refusal is None:
            with self._lock:
                if self._link is None and self.refusal is None:
                    self._link, why = connect(self._store, self._rank, self._size, index, self._longest)
                    if self._link is None:
                        self.refusal = why
                    _log.info("%s exchanges through %s", self._name, f"gloo: {why}" if why else "shared memory")
        return self._link

    def abort(self) -> None:
        """Has everything underway end with an error, on all ranks."""
        if self._link is not None:
            self._link.abort()

    def close(self) -> None:
        """Lets the memory go. Nothing is underway, and nothing will be."""
        link, self._link, self.refusal = self._link, None, "the process group was destroyed"
        if link is not None:
            link.close()


class SharedExchange(Exchange):
    """A collective through shared memory."""

    carried_by = "shared memory"
    is_issued_at_once = True  # it takes its place

    def __init__(self, request: Request, link: Link) -> None:
        self._request, self._name, self._tensors = request, request.collective.name, request.tensors
        self._rest, self._link, self._ticket = request.rest, link, 0
        self.is_on_host = sum(t.nbytes for t in flat(self._tensors)) <= HOST_BYTES
        self._prepared = PreparedOnHost() if self.is_on_host else Prepared()
        self._reducing: CollectiveReduction | None = None
        self._underway: Underway | None = link.begin(self)

    def issue(self) -> None:
        self._ticket = self._link.ticket()

    def finish(self) -> int:
        underway, self._underway = self._underway, None  # it has this one
        assert underway is not None
        with torch.no_grad(), short_thread_switches():
            self._link.run(self._ticket, underway)
        return -1

    def storages(self, role: str) -> Iterator[int]:
        """The addresses of those that this rank reads, or writes."""
        return self._request.storages(role)

    def read_inputs(self) -> None:
        """Waits until what is reduced on the host is there."""
        self._prepared.read()

    def end(self) -> None:
        """Copies into strided tensors, or from the host."""
        self._prepared.write_back()

    def called(self) -> str:
        """What has to be the same on all ranks."""
        tensors = list(flat(self._tensors[-1]))
        sizes = ", ".join(f"{describe(t).partition('[')[0]}[{t.numel()}]" for t in tensors[:4])
        more = f" and {len(tensors) - 4} more, {sum(t.numel() for t in tensors)} in all" if len(tensors) > 4 else ""
        root = f" with rank {self._root()}" if self._root() is not None else ""
        by = f" by {self._reducing.name}" if self._reducing is not None else ""
        return f"{self._name.strip('_')} of {sizes}{more}{root}{by}"

    def _root(self) -> int | None:
        place = {"broadcast_": 0, "reduce_": 1}.get(self._name)
        return None if place is None else int(self._rest[place])

    def chunked(self) -> list[Chunked]:
        """What it exchanges, tensor by tensor."""
        made: list[Chunked] = EXCHANGES[self._name](self, self._prepared)
        return made

    def _reduction(self, t: torch.Tensor) -> CollectiveReduction:
        if self._reducing is None:
            self._reducing = CollectiveReduction(self._rest[0], t.dtype)
        return self._reducing

    def _elements(self, t: torch.Tensor) -> int:
        return self._link.slot_bytes // t.itemsize

    def _all_reduce(self, prepared: Prepared | PreparedOnHost) -> list[Chunked]:
        here, root = self._link, self._root()
        made: list[Chunked] = []
        for t in self._tensors[0]:
            whole, reads = prepared.target(t, is_read=True), root in (None, here.rank)
            made.append(AllReduce(whole, here.rank, here.ranks, self._reduction(t), self._elements(whole), reads))
        return made

    def _broadcast(self, prepared: Prepared | PreparedOnHost) -> list[Chunked]:
        here, root = self._link, self._root()
        assert root is not None
        tensors = [prepared.source(t) if here.rank == root else prepared.target(t) for t in self._tensors[0]]
        return [Broadcast(t, here.rank, root, self._elements(t)) for t in tensors]

    def _all_gather(self, prepared: Prepared | PreparedOnHost) -> list[Chunked]:
        outputs, inputs = self._tensors
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        made: list[Chunked] = []
        for k, given in enumerate(inputs):
            whole = outputs[k]
            if self._name == "allgather_coalesced_":  # a list of each rank
                whole = [of_rank[k] for of_rank in outputs]
            source = prepared.source(given)
            parts = self._parts(prepared.target, whole)
            made.append(AllGather(parts, source, self._link.rank, self._elements(source)))
        return made

    def _parts(self, flattened: Callable[[torch.Tensor], torch.Tensor], whole: Any) -> list[torch.Tensor]:
        """A tensor's parts for each rank, or the tensors in a list."""
        if isinstance(whole, torch.Tensor):
            return list(flattened(whole).chunk(self._link.ranks)) if whole.numel() else []
        return [flattened(t) for t in whole]

    def _reduce_scatter(self, prepared: Prepared | PreparedOnHost) -> list[Chunked]:
        outputs, inputs = self._tensors
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        made: list[Chunked] = []
        for output, given in zip(outputs, inputs, strict=True):
            parts, target = self._parts(prepared.source, given), prepared.target(output)
            if parts:
                reduced = self._reduction(output)
                made.append(ReduceScatter(target, parts, self._link.rank, self._elements(target), reduced))
        return made


_of = SharedExchange
EXCHANGES: dict[str, Any] = {
    "allreduce_": _of._all_reduce, "allreduce_coalesced_": _of._all_reduce, "reduce_": _of._all_reduce,
    "broadcast_": _of._broadcast, "allgather_": _of._all_gather, "_allgather_base_": _of._all_gather,
    "allgather_coalesced_": _of._all_gather, "allgather_into_tensor_coalesced_": _of._all_gather,
    "reduce_scatter_": _of._reduce_scatter, "_reduce_scatter_base_": _of._reduce_scatter,
    "reduce_scatter_tensor_coalesced_": _of._reduce_scatter,
}  # fmt: skip
