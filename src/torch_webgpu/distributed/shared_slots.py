"""What each collective writes into the slots of shared memory, and what it makes of those of all ranks.

Tensors go in chunks. All parts of a chunk's slots are tensors of the device over host memory (see
:mod:`torch_webgpu.engine.imported`); copies and sums are operators on them, which the device fuses into one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from torch_webgpu.engine.imported import host_memory_tensor

from .shared_memory import host_bytes

SLOTS, SLOT_BYTES, ALL_BYTES = 16, 8 << 20, 512 << 20
"""How many slots a rank has at first, and their size, unless all were more together."""
MOST_SLOTS, MOST_BYTES, PART_OF_HOST = 64, 4 << 30, 16
"""How many it has at most, unless all were more together than this, or than such a part of the host's memory."""
DIRECT_RANKS, DIRECT_BYTES = 3, 1 << 18
"""Up to so many ranks, or bytes, each rank reduces everything; else each its part, which the others read."""
PART_BYTES = 256
"""What parts of a chunk are multiples of."""
Reduction = Callable[[Sequence[torch.Tensor]], torch.Tensor]


class Slot(NamedTuple):
    """Bytes of host memory, as a tensor of the device, or of the CPU."""

    memory: torch.Tensor

    def of(self, dtype: torch.dtype, elements: int, first: int = 0) -> torch.Tensor:
        """Elements of it."""
        at = first * dtype.itemsize
        return self.memory[at : at + elements * dtype.itemsize].view(dtype)


class Slots:
    """Those of each rank, of ``slot_bytes``: the rank alone writes into them, the others read.

    Each is a tensor with a storage of its own, so that it makes no difference to a plan in which slots chunks are.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks, self.slot_bytes = ranks, SLOT_BYTES
        self._of_ranks: list[list[tuple[Slot, Slot]]] = [[] for _ in range(ranks)]

    @property
    def count(self) -> int:
        """How many each rank has."""
        return len(self._of_ranks[0])

    def imported(self, index: int, memory: memoryview) -> list[tuple[Slot, Slot]]:
        """All that host memory has room for, on a device and on the CPU; RuntimeError where that is refused."""
        parts = [memory[at : at + self.slot_bytes] for at in range(0, memory.nbytes, self.slot_bytes)]
        return [
            (Slot(host_memory_tensor(index, part)), Slot(torch.frombuffer(part, dtype=torch.uint8))) for part in parts
        ]

    def add(self, slots: Sequence[tuple[Slot, Slot]]) -> range:
        """Adds some: as many of each rank, one rank's after the other's. Their numbers."""
        first, more = self.count, len(slots) // self.ranks
        for rank in reversed(range(self.ranks)):  # the first rank's tell the count
            self._of_ranks[rank] += slots[rank * more : (rank + 1) * more]
        return range(first, self.count)

    @staticmethod
    def first_count(ranks: int) -> int:
        """How many each of so many ranks has at first."""
        return max(4, min(SLOTS, ALL_BYTES // SLOT_BYTES // ranks))

    @classmethod
    def most(cls, ranks: int) -> int:
        """How many each of so many ranks may come to have."""
        all_bytes = min(MOST_BYTES, host_bytes() // PART_OF_HOST)
        return max(cls.first_count(ranks), min(MOST_SLOTS, all_bytes // SLOT_BYTES // ranks))

    def of(self, rank: int, slot: int, on_host: bool) -> Slot:
        """One of a rank's, as a tensor of the device or of the CPU."""
        return self._of_ranks[rank][slot][on_host]


class Chunked:
    """A collective of one tensor on one rank, chunk by chunk, of ``chunk_elements`` of each part that a rank has."""

    chunk_elements: int
    is_given, is_reduced_in_parts = True, False
    """Whether this rank copies anything into its slots; whether each rank reduces a part for the others."""

    @property
    def chunks(self) -> int:
        """How many it takes."""
        return -(-self.whole().numel() // self.chunk_elements)

    def whole(self) -> torch.Tensor:
        """What is cut into chunks, or one of what are cut alike."""
        raise NotImplementedError

    def part(self, number: int) -> slice:
        """The elements of chunk ``number``."""
        return slice(number * self.chunk_elements, (number + 1) * self.chunk_elements)

    def write(self, slot: Slot, number: int) -> None:
        """Copies this rank's chunk ``number`` into its slot."""

    def reduce_part(self, slots: Sequence[Slot], number: int) -> None:
        """Reduces this rank's part of what all ranks' slots have, into its own slot, if that is done in parts."""

    def read(self, slots: Sequence[Slot], number: int) -> None:
        """Makes the results of all ranks' slots."""


@dataclass
class AllReduce(Chunked):
    """``tensor`` in one dimension becomes what all ranks' are reduced to, on the ranks that ``reads`` says."""

    tensor: torch.Tensor
    rank: int
    ranks: int
    reduction: Reduction
    chunk_elements: int
    reads: bool = True

    def __post_init__(self) -> None:
        self.is_reduced_in_parts = self.ranks > DIRECT_RANKS and self.tensor.nbytes > DIRECT_BYTES

    def whole(self) -> torch.Tensor:
        return self.tensor

    def write(self, slot: Slot, number: int) -> None:
        mine = self.tensor[self.part(number)]
        slot.of(mine.dtype, mine.numel()).copy_(mine)

    def _parts(self, elements: int, itemsize: int) -> list[slice]:
        """Which elements of a chunk each rank reduces."""
        aligned = PART_BYTES // itemsize
        size = -(-elements // (self.ranks * aligned)) * aligned
        ends = [min(rank * size, elements) for rank in range(self.ranks + 1)]
        return [slice(*pair) for pair in pairwise(ends)]

    def reduce_part(self, slots: Sequence[Slot], number: int) -> None:
        mine = self.tensor[self.part(number)]
        part = self._parts(mine.numel(), mine.itemsize)[self.rank]
        if size := part.stop - part.start:
            parts = [slot.of(mine.dtype, size, part.start) for slot in slots]
            parts[self.rank].copy_(self.reduction(parts))  # nobody else has read this part of it

    def read(self, slots: Sequence[Slot], number: int) -> None:
        if not self.reads:
            return
        mine = self.tensor[self.part(number)]
        if self.is_reduced_in_parts:
            for slot, part in zip(slots, self._parts(mine.numel(), mine.itemsize), strict=True):
                mine[part].copy_(slot.of(mine.dtype, part.stop - part.start, part.start))
        else:
            parts = [
                mine if rank == self.rank else slot.of(mine.dtype, mine.numel()) for rank, slot in enumerate(slots)
            ]
            mine.copy_(self.reduction(parts))


@dataclass
class Broadcast(Chunked):
    """``tensor`` in one dimension becomes that of ``root``."""

    tensor: torch.Tensor
    rank: int
    root: int
    chunk_elements: int

    def __post_init__(self) -> None:
        self.is_given = self.rank == self.root

    def whole(self) -> torch.Tensor:
        return self.tensor

    def write(self, slot: Slot, number: int) -> None:
        mine = self.tensor[self.part(number)]
        slot.of(mine.dtype, mine.numel()).copy_(mine)

    def read(self, slots: Sequence[Slot], number: int) -> None:
        if self.rank != self.root:
            mine = self.tensor[self.part(number)]
            mine.copy_(slots[self.root].of(mine.dtype, mine.numel()))


@dataclass
class AllGather(Chunked):
    """``outputs``, one of each rank, become the ``tensor`` that the rank has, all in one dimension."""

    outputs: Sequence[torch.Tensor]
    tensor: torch.Tensor
    rank: int
    chunk_elements: int

    def whole(self) -> torch.Tensor:
        return self.tensor

    def write(self, slot: Slot, number: int) -> None:
        mine = self.tensor[self.part(number)]
        slot.of(mine.dtype, mine.numel()).copy_(mine)

    def read(self, slots: Sequence[Slot], number: int) -> None:
        mine = self.tensor[self.part(number)]
        for rank, output in enumerate(self.outputs):
            source = mine if rank == self.rank else slots[rank].of(mine.dtype, mine.numel())
            output[self.part(number)].copy_(source)


@dataclass
class ReduceScatter(Chunked):
    """Each rank has ``inputs`` for all. ``output`` becomes what those for this one are reduced to."""

    output: torch.Tensor
    inputs: Sequence[torch.Tensor]
    rank: int
    chunk_elements: int
    reduction: Reduction

    def __post_init__(self) -> None:
        aligned = PART_BYTES // self.inputs[0].itemsize
        self.chunk_elements = max(self.chunk_elements // len(self.inputs) // aligned, 1) * aligned

    def whole(self) -> torch.Tensor:
        return self.inputs[0]

    def write(self, slot: Slot, number: int) -> None:
        for other, given in enumerate(self.inputs):
            mine = given[self.part(number)]
            if other != self.rank:
                slot.of(mine.dtype, mine.numel(), other * self.chunk_elements).copy_(mine)

    def read(self, slots: Sequence[Slot], number: int) -> None:
        mine = self.inputs[self.rank][self.part(number)]
        size, first = mine.numel(), self.rank * self.chunk_elements
        parts = [mine if rank == self.rank else slot.of(mine.dtype, size, first) for rank, slot in enumerate(slots)]
        self.output[self.part(number)].copy_(self.reduction(parts))
