"""Collectives through shared memory: which are, and what each exchanges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torch_webgpu.engine.imported import submit

from .reductions import OF_TRUTH, REDUCED, probe, reduction
from .sequence import explained
from .shared_slots import AllGather, AllReduce, Broadcast, Exchange, Reduction, Scattered
from .shared_transport import SharedTransport
from .staging import describe


def carries(name: str, reduces: bool, tensors: Sequence[Any], ranks: int) -> bool:
    """Whether a collective goes through shared memory. All ranks answer alike: by what is the same on all of them."""
    if name not in EXCHANGES:
        return False
    every = _flat_list(tensors)
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


class Prepared:
    """Tensors in one dimension for an exchange, and what is to be written back into those that are strided."""

    def __init__(self) -> None:
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor that is read."""
        return self._flat(t.data.contiguous())

    def target(self, t: torch.Tensor, is_read: bool = False) -> torch.Tensor:
        """A tensor that is written, and read first perhaps."""
        if t.is_contiguous():
            return self._flat(t.data)
        copy = t.data.contiguous() if is_read else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        self._copied.append((t.data, copy))
        return self._flat(copy)

    @staticmethod
    def _flat(t: torch.Tensor) -> torch.Tensor:
        return t.view(-1).view(element_type(t.dtype))

    def write_back(self) -> None:
        """Copies into the strided ones."""
        for t, copy in self._copied:
            t.copy_(copy)


class SharedCall:
    """A collective through shared memory, as :class:`.sequence.Sequence` runs it."""

    def __init__(
        self, what: Callable[[], str], name: str, tensors: Sequence[Any], rest: Sequence[Any], work: Any, group: Any,
        transport: SharedTransport,
    ) -> None:  # fmt: skip
        self._what, self._name, self._tensors, self._rest = what, name, tensors, rest
        self.work, self.group, self._transport = work, group, transport
        self._ticket = 0

    def __str__(self) -> str:
        return self._what()

    def issue(self) -> None:
        """Takes its place among the group's."""
        self._ticket = self._transport.ticket()

    def finish(self, looks: bool = False) -> None:
        """Runs it. Completes the work, whatever happens. Raises KeyboardInterrupt alone."""
        prepared = Prepared()
        try:
            with torch.no_grad():
                self._transport.run(self._ticket, self._called(), partial(self._exchanges, prepared))
                prepared.write_back()
                submit(self._transport.index)
        except KeyboardInterrupt:
            self.fail(RuntimeError("it was interrupted; other ranks may still wait for this one"))
            raise
        except BaseException as error:  # noqa: BLE001 it is the work's, whatever it is
            self.fail(error)
        else:
            self.work.complete()

    def fail(self, error: BaseException) -> None:
        """Completes the work with an error that says which collective it was."""
        self.work.fail(explained(error, self._what()))

    def _called(self) -> str:
        """What has to be the same on all ranks."""
        side = self._tensors[-1]
        tensors = [side] if isinstance(side, torch.Tensor) else list(_flat_list(side))
        sizes = ", ".join(f"{describe(t).partition('[')[0]}[{t.numel()}]" for t in tensors[:4])
        more = f" and {len(tensors) - 4} more" if len(tensors) > 4 else ""
        root = f" with rank {self._root()}" if self._root() is not None else ""
        return f"{self._name.strip('_')} of {sizes}{more}{root}"

    def _root(self) -> int | None:
        place = {"broadcast_": 0, "reduce_": 1}.get(self._name)
        return None if place is None else int(self._rest[place])

    def _exchanges(self, prepared: Prepared) -> list[Exchange]:
        made: list[Exchange] = EXCHANGES[self._name](self, prepared)
        return made

    def _reduction(self, t: torch.Tensor) -> Reduction:
        name = probe().name_of(self._rest[0])
        if t.dtype == torch.bool:
            return reduction(OF_TRUTH.get(name, name), torch.uint8)
        return reduction(name, t.dtype)

    def _elements(self, flat: torch.Tensor) -> int:
        return self._transport.slot_bytes // flat.itemsize

    def _all_reduce(self, prepared: Prepared) -> list[Exchange]:
        here, root = self._transport, self._root()
        made: list[Exchange] = []
        for t in self._tensors[0]:
            flat, reads = prepared.target(t, is_read=True), root in (None, here.rank)
            made.append(AllReduce(flat, here.rank, here.ranks, self._reduction(t), self._elements(flat), reads))
        return made

    def _broadcast(self, prepared: Prepared) -> list[Exchange]:
        here, root = self._transport, self._root()
        assert root is not None
        tensors = [prepared.source(t) if here.rank == root else prepared.target(t) for t in self._tensors[0]]
        return [Broadcast(t, here.rank, root, self._elements(t)) for t in tensors]

    def _all_gather(self, prepared: Prepared) -> list[Exchange]:
        outputs, inputs = self._tensors
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        made: list[Exchange] = []
        for k, given in enumerate(inputs):
            whole = outputs[k]
            if self._name == "allgather_coalesced_":  # a list of each rank
                whole = [of_rank[k] for of_rank in outputs]
            source = prepared.source(given)
            made.append(
                AllGather(self._parts(prepared.target, whole), source, self._transport.rank, self._elements(source))
            )
        return made

    def _parts(self, flattened: Callable[[torch.Tensor], torch.Tensor], whole: Any) -> list[torch.Tensor]:
        """A tensor's parts for each rank, or the tensors in a list."""
        if isinstance(whole, torch.Tensor):
            return list(flattened(whole).chunk(self._transport.ranks)) if whole.numel() else []
        return [flattened(t) for t in whole]

    def _reduce_scatter(self, prepared: Prepared) -> list[Exchange]:
        outputs, inputs = self._tensors
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        made: list[Exchange] = []
        for output, given in zip(outputs, inputs, strict=True):
            parts, target = self._parts(prepared.source, given), prepared.target(output)
            if parts:
                reduced = self._reduction(output)
                made.append(Scattered([target], parts, self._transport.rank, self._elements(target), reduced))
        return made


def _flat_list(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _flat_list(v)]


_of = SharedCall
EXCHANGES: dict[str, Any] = {
    "allreduce_": _of._all_reduce, "allreduce_coalesced_": _of._all_reduce, "reduce_": _of._all_reduce,
    "broadcast_": _of._broadcast, "allgather_": _of._all_gather, "_allgather_base_": _of._all_gather,
    "allgather_coalesced_": _of._all_gather, "allgather_into_tensor_coalesced_": _of._all_gather,
    "reduce_scatter_": _of._reduce_scatter, "_reduce_scatter_base_": _of._reduce_scatter,
    "reduce_scatter_tensor_coalesced_": _of._reduce_scatter,
}  # fmt: skip
