"""What each collective writes into the slots of shared memory, and what it makes of those of all ranks.

Tensors go in chunks. All parts of a chunk's slots are tensors of the device over host memory (see
:mod:`torch_webgpu.engine.imported`); copies and sums are operators on them, which the device fuses into one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

CHUNKS = 4
"""How many chunks have slots at once: a rank writes one while the others may still read the last but one."""
DIRECT_RANKS, DIRECT_BYTES = 3, 1 << 18
"""Up to so many ranks, or bytes, each rank reduces everything; else each its part, which the others read."""
PART_BYTES = 256
"""What parts of a chunk are multiples of."""
Reduction = Callable[[Sequence[torch.Tensor]], torch.Tensor]


class Slots:
    """For each chunk at hand, a slot of each rank, and one for results: ``slot_bytes`` each."""

    def __init__(self, memory: torch.Tensor, ranks: int, slot_bytes: int) -> None:
        self._memory, self.ranks, self.slot_bytes = memory, ranks, slot_bytes

    @staticmethod
    def size_bytes(ranks: int, slot_bytes: int) -> int:
        """Of them all."""
        return CHUNKS * (ranks + 1) * slot_bytes

    def of(self, chunk: int, rank: int, dtype: torch.dtype, elements: int, first: int = 0) -> torch.Tensor:
        """Elements of a rank's slot; of the results with rank -1."""
        at = ((chunk % CHUNKS) * (self.ranks + 1) + rank % (self.ranks + 1)) * self.slot_bytes + first * dtype.itemsize
        return self._memory[at : at + elements * dtype.itemsize].view(dtype)


class Chunked:
    """A collective of one tensor on one rank, chunk by chunk, of ``chunk_elements`` of each part that a rank has."""

    chunk_elements: int
    is_reduced_in_parts = False

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

    def write(self, slots: Slots, chunk: int, number: int) -> None:
        """Fills this rank's slot with its chunk ``number``, whose slots are those of ``chunk``."""

    def reduce_part(self, slots: Slots, chunk: int, number: int) -> None:
        """Fills this rank's part of the results, if they are made in parts."""

    def read(self, slots: Slots, chunk: int, number: int) -> None:
        """Makes the results of all slots."""


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

    def write(self, slots: Slots, chunk: int, number: int) -> None:
        mine = self.tensor[self.part(number)]
        slots.of(chunk, self.rank, mine.dtype, mine.numel()).copy_(mine)

    def reduce_part(self, slots: Slots, chunk: int, number: int) -> None:
        mine = self.tensor[self.part(number)]
        aligned = PART_BYTES // mine.itemsize
        size = -(-mine.numel() // (self.ranks * aligned)) * aligned
        first = min(self.rank * size, mine.numel())
        size = min(size, mine.numel() - first)
        if size:
            parts = [slots.of(chunk, r, mine.dtype, size, first) for r in range(self.ranks)]
            slots.of(chunk, -1, mine.dtype, size, first).copy_(self.reduction(parts))

    def read(self, slots: Slots, chunk: int, number: int) -> None:
        if not self.reads:
            return
        mine = self.tensor[self.part(number)]
        if self.is_reduced_in_parts:
            mine.copy_(slots.of(chunk, -1, mine.dtype, mine.numel()))
        else:
            parts = [
                mine if r == self.rank else slots.of(chunk, r, mine.dtype, mine.numel()) for r in range(self.ranks)
            ]
            mine.copy_(self.reduction(parts))


@dataclass
class Broadcast(Chunked):
    """``tensor`` in one dimension becomes that of ``root``."""

    tensor: torch.Tensor
    rank: int
    root: int
    chunk_elements: int

    def whole(self) -> torch.Tensor:
        return self.tensor

    def write(self, slots: Slots, chunk: int, number: int) -> None:
        if self.rank == self.root:
            mine = self.tensor[self.part(number)]
            slots.of(chunk, self.root, mine.dtype, mine.numel()).copy_(mine)

    def read(self, slots: Slots, chunk: int, number: int) -> None:
        if self.rank != self.root:
            mine = self.tensor[self.part(number)]
            mine.copy_(slots.of(chunk, self.root, mine.dtype, mine.numel()))


@dataclass
class AllGather(Chunked):
    """``outputs``, one of each rank, become the ``tensor`` that the rank has, all in one dimension."""

    outputs: Sequence[torch.Tensor]
    tensor: torch.Tensor
    rank: int
    chunk_elements: int

    def whole(self) -> torch.Tensor:
        return self.tensor

    def write(self, slots: Slots, chunk: int, number: int) -> None:
        mine = self.tensor[self.part(number)]
        slots.of(chunk, self.rank, mine.dtype, mine.numel()).copy_(mine)

    def read(self, slots: Slots, chunk: int, number: int) -> None:
        mine = self.tensor[self.part(number)]
        for rank, output in enumerate(self.outputs):
            source = mine if rank == self.rank else slots.of(chunk, rank, mine.dtype, mine.numel())
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

    def write(self, slots: Slots, chunk: int, number: int) -> None:
        for other, given in enumerate(self.inputs):
            mine = given[self.part(number)]
            if other != self.rank:
                slots.of(chunk, self.rank, mine.dtype, mine.numel(), other * self.chunk_elements).copy_(mine)

    def read(self, slots: Slots, chunk: int, number: int) -> None:
        mine = self.inputs[self.rank][self.part(number)]
        size, first = mine.numel(), self.rank * self.chunk_elements
        parts = [
            mine if other == self.rank else slots.of(chunk, other, mine.dtype, size, first)
            for other in range(len(self.inputs))
        ]
        self.output[self.part(number)].copy_(self.reduction(parts))
