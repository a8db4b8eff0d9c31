"""Lists of tensors as recorded operations name them.

A :class:`RecordedList` is a list that was looked at once: its allocations, offsets, shapes. An operation names it by
one address, so that recording costs the same for two tensors and for two hundred. Which tensors it has in common with
other arguments is worked out when a lane is flushed (``recording.Recording``), and what lies where when a plan is made.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from torch_webgpu.errors import AddressError
from torch_webgpu.layout import MAX_INDEX

from .tensor import ADDRESS_BITS, FIRST_BYTE, LAST_NUMBER, Allocation, Image, Mailbox

FIRST_LIST_ADDRESS = 2 * LAST_NUMBER << ADDRESS_BITS
"""Beyond the addresses of tensors."""
MOST_APART = 1000
"""Other lists that one is known to have no tensor in common with."""

_geometry_ids = itertools.count()
_addresses = itertools.count(FIRST_LIST_ADDRESS | FIRST_BYTE, 1 << ADDRESS_BITS)


@dataclass(frozen=True, eq=False)
class ListGeometry:
    """The shapes and strides of a list's tensors. There is one for each distinct combination (see ``aten``).

    ``order``: that of all whose tensors lie in memory in the same order, whatever the strides of their dimensions of
    one element, which say nothing; None where it is this one itself.
    """

    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    numels: tuple[int, ...]
    order: ListGeometry | None = None
    id: int = field(default_factory=lambda: next(_geometry_ids))
    images: dict[Any, Image] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if max(self.numels, default=0) > MAX_INDEX:
            raise AddressError(f"a list with a tensor of {max(self.numels)} elements: kernels number {MAX_INDEX}")

    def lies_like(self, other: ListGeometry) -> bool:
        """Whether element for element, in the order of memory, tensors of both have the same place in their shapes."""
        return self is other or (self.order or self) is (other.order or other)

    @cached_property
    def is_numbers(self) -> bool:
        """Whether all are 0-dim."""
        return not any(self.shapes)


class RecordedList(int):
    """A list of tensors as recorded operations name it: an address, with what lies there.

    Its tensors have one dtype and one device, and start at multiples of four elements: ``starts``, in bytes. A list of
    one has its tensor's address. ``keys``: the different numbers among ``allocation_numbers``. ``shares``: two of its
    tensors lie in one allocation, so that the list can be read only.
    """

    geometry: ListGeometry
    dtype: torch.dtype
    device: int
    allocations: list[Allocation]
    starts: list[int]
    allocation_numbers: Sequence[int]

    def __new__(
        cls, geometry: ListGeometry, dtype: torch.dtype, device: int, allocations: list[Allocation], starts: list[int]
    ) -> RecordedList:
        made = super().__new__(cls, allocations[0].address + starts[0] if len(starts) == 1 else next(_addresses))
        made.allocations, made.starts = allocations, starts
        made._look(geometry, dtype, device, [a.number for a in allocations])
        return made

    def _look(self, geometry: ListGeometry, dtype: torch.dtype, device: int, numbers: Sequence[int]) -> None:
        self.geometry, self.dtype, self.device, self.allocation_numbers = geometry, dtype, device, numbers
        self.keys, self.size = frozenset(numbers), len(numbers)
        self.shares = len(self.keys) < len(numbers)
        self.is_aligned = not any(self.starts)
        self.check: Callable[..., bool] | None = None  # whether tensors at these addresses still look like these
        self._apart: set[int] = set()

    @property
    def sizes(self) -> Sequence[int]:
        """The bytes of each tensor's storage."""
        return [a.size_bytes for a in self.allocations]

    @property
    def is_alive(self) -> bool:
        """Whether all its tensors' storages live."""
        return all([a.alive for a in self.allocations])  # noqa: C419  a generator takes three times as long

    @property
    def is_readable(self) -> bool:
        """Whether somebody can still read what it holds."""
        return any(a.alive for a in self.allocations)

    def is_apart(self, other: RecordedList) -> bool:
        """Whether the two have no allocation in common."""
        if other in self._apart or not self.allocations or not other.allocations:  # nobody knows an unmade one's
            return self is not other
        apart = self.keys.isdisjoint(other.keys)
        if apart and len(self.keys) > 1 and len(other.keys) > 1:  # a tensor's address can become another one's
            if len(self._apart) >= MOST_APART:
                self._apart.clear()
            self._apart.add(int(other))
        return apart

    def settle(self, mailbox: Mailbox) -> None:
        """Makes sure that it has allocations."""


class Intermediate(RecordedList):
    """A new list that nothing but list operations has seen: without tensors, and with memory only if a plan stores it.

    ``held``: whether it is wanted, as it is until :meth:`drop`, or until :func:`.lists.make_seen` gives it tensors.
    """

    image: Image
    held: bool

    def __new__(cls, geometry: ListGeometry, dtype: torch.dtype, image: Image, numbers: Sequence[int]) -> Intermediate:
        made = int.__new__(cls, next(_addresses))
        made.allocations, made.starts = [], []
        made._look(geometry, dtype, image.device, numbers)
        made.image, made.held = image, True
        return made

    @property
    def sizes(self) -> Sequence[int]:
        return self.image.sizes

    @property
    def is_readable(self) -> bool:
        return self.held or any(a.alive for a in self.allocations)

    def settle(self, mailbox: Mailbox) -> None:
        if not self.allocations:
            self.allocations = mailbox.new_allocations(self.image, self.allocation_numbers)
            self.starts = [0] * len(self.allocations)
            if not self.held:
                _orphan(self.allocations)

    def drop(self) -> None:
        """Nobody wants it any more. May be called at any time, by the garbage collector."""
        if self.held:
            self.held = False
            _orphan(self.allocations)


orphans: deque[Allocation] = deque()
"""What nobody wants and no mailbox knows of. Filled whenever something dies, emptied at a flush."""


def _orphan(allocations: Sequence[Allocation]) -> None:
    for allocation in allocations:
        allocation.alive = False
    orphans.extend(allocations)


def bury(dying: list[Allocation]) -> None:
    """Hands on what nobody wants any more."""
    while orphans:
        dying.append(orphans.popleft())
