"""Many new tensors at once: what :meth:`.tensor.Mailbox.make` does for one, in a few vectorised steps.

All but a slot's addresses is known beforehand, so that the slots of a whole list are written by one copy of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import torch

from .tensor import (
    ADDRESS_BITS,
    FIRST_BYTE,
    HEAD_BYTES,
    LARGE_BYTES,
    SLAB_SLOTS,
    SLOT_BYTES,
    Allocation,
    Mailbox,
    Slab,
    Template,
    as_strided,
    from_dlpack,
    new_capsule,
)

WORD_BYTES = 8
DATA, SHAPE, STRIDES_END = 0, 3, 5
"""Where a slot's addresses are, in words: of its data; from the shape's to the strides'."""


class Image:
    """The slots of a list of new tensors, but for addresses. All are of one device."""

    def __init__(self, templates: Sequence[Template]) -> None:
        memory = bytearray(len(templates) * SLOT_BYTES)
        for k, t in enumerate(templates):
            dims = HEAD_BYTES if t.dims is None else t.dims.ctypes.data
            t.pack(memory, k * SLOT_BYTES, 0, t.kind, dims, dims + t.strides_at, t.tail)
        words = np.frombuffer(memory, np.uint64).reshape(len(templates), -1)
        self.words = words[:, : 1 + int(np.flatnonzero(words.any(0))[-1])].copy()
        self.dims_in_slot = np.array([[t.dims is None] for t in templates], np.uint64)
        self.templates = tuple(templates)  # which own the dims that are not in a slot
        self.sizes = [t.size_bytes for t in templates]
        self.device = templates[0].device
        self.size_bytes, self.largest_bytes = sum(self.sizes), max(self.sizes)
        self.views = [(k, t.offset_view) for k, t in enumerate(templates) if t.offset_view is not None]


def new_allocations(mailbox: Mailbox, image: Image, numbers: Sequence[int]) -> list[Allocation]:
    """Unmaterialised allocations of these numbers, just large enough."""
    allocations = list(map(Allocation, numbers, repeat(image.device), image.sizes))
    mailbox.allocations.update(zip(numbers, allocations))
    return allocations


def make_tensors(mailbox: Mailbox, image: Image, allocations: Sequence[Allocation]) -> list[torch.Tensor]:
    """Tensors over allocations that have none yet."""
    count = len(allocations)
    words = image.words.copy()
    numbers = np.array([a.number for a in allocations], np.uint64)
    words[:, DATA] = (numbers << np.uint64(ADDRESS_BITS)) + np.uint64(FIRST_BYTE)
    places: list[int] = []
    while len(places) < count:
        slab = mailbox.open[-1] if mailbox.open else mailbox.new_slab()
        start = max(0, len(slab.free) - count + len(places))
        slots = slab.free[start:]
        del slab.free[start:]
        if not slab.free:
            mailbox.open.remove(slab)
        part = slice(len(places), len(places) + len(slots))
        places += _write(slab, slots, words[part], image.dims_in_slot[part], allocations[part])
        if image.largest_bytes > LARGE_BYTES:
            large = zip(allocations[part], slots)
            mailbox.large.update({a.number: (slab, slot) for a, slot in large if a.size_bytes > LARGE_BYTES})
    tensors = list(map(from_dlpack, map(new_capsule, places, repeat(b"dltensor"), repeat(None))))
    for k, view in image.views:
        tensors[k] = as_strided(tensors[k], *view, 0)
    return tensors


def free_slots(mailbox: Mailbox) -> int:
    """How many tensors can be made without a new slab."""
    return sum([len(slab.free) for slab in mailbox.open])


def _write(
    slab: Slab, slots: list[int], words: np.ndarray, dims_in_slot: np.ndarray, allocations: Sequence[Allocation]
) -> list[int]:
    """Fills slots; their addresses."""
    rows = np.array(slots, np.uint64)
    places = rows * np.uint64(SLOT_BYTES) + np.uint64(slab.base)
    words[:, SHAPE:STRIDES_END] += places[:, None] * dims_in_slot
    memory = np.frombuffer(slab.memory, np.uint64).reshape(SLAB_SLOTS, SLOT_BYTES // WORD_BYTES)
    memory[rows, : words.shape[1]] = words
    owners = slab.owners
    for slot, allocation in zip(slots, allocations):
        owners[slot] = allocation
    return places.tolist()
