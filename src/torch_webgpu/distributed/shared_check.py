"""The first exchange of ranks through shared memory: of numbers that all know, so that wrong bytes are noticed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .shared_slots import SLOTS, Chunked, Slot, Slots

NUMBERS = 4096
"""At each end of a slot."""


def known(rank: int, number: int) -> torch.Tensor:
    """What a rank writes as its chunk ``number``."""
    seed = 1 + rank * (SLOTS + 1) + number
    return (torch.arange(NUMBERS, device="cpu") * 40_503 + seed * 2_654_435_761).remainder(2**31 - 1).to(torch.int32)


class Check(Chunked):
    """An all_gather of known numbers, which go through both ends of all slots, and through one's once more."""

    def __init__(self, slots: Slots, rank: int, index: int) -> None:
        last = slots.slot_bytes // torch.int32.itemsize - NUMBERS
        self._ends, self._rank, self._ranks, self._chunks = (0, last), rank, slots.ranks, slots.count + 1
        self._device = torch.device("webgpu", index)
        self._seen: list[torch.Tensor] = []
        self._known: list[torch.Tensor] = []

    is_on_host = False

    def storages(self, role: str) -> Iterable[int]:
        """None that others have."""
        return ()

    def chunked(self) -> Sequence[Chunked]:
        """Itself."""
        return (self,)

    def called(self) -> str:
        """What the ranks are told."""
        return "the first exchange"

    def read_inputs(self) -> None:
        """There are none."""

    def reached(self, step: str) -> None:
        """Nobody looks on."""

    def end(self) -> None:
        """Nothing is to be done."""

    @property
    def chunks(self) -> int:
        return self._chunks

    def write(self, slot: Slot, number: int) -> None:
        numbers = known(self._rank, number).to(self._device)
        for first in self._ends:
            slot.of(numbers.dtype, NUMBERS, first).copy_(numbers)

    def read(self, slots: Sequence[Slot], number: int) -> None:
        for rank, slot in enumerate(slots):
            self._seen.append(torch.cat([slot.of(torch.int32, NUMBERS, first) for first in self._ends]))
            self._known.append(known(rank, number).repeat(2))

    def look(self) -> None:
        """RuntimeError where what came is not what was written."""
        wrong = torch.stack(self._seen).cpu() != torch.stack(self._known)
        if wrong.any():
            ranks = sorted({int(k) % self._ranks for k in wrong.any(1).nonzero()})
            raise RuntimeError(f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong, of ranks {ranks}")
