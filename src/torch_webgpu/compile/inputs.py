"""Inputs of a plan: what it cannot take as it is, is copied first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

import torch

from torch_webgpu.engine.plan_function import INPUT_ALIGNMENT_BYTES
from torch_webgpu.engine.tensor import ADDRESS_BITS, FIRST_ADDRESS, as_strided
from torch_webgpu.layout import extent

# For ``map``, which is a quarter faster than a loop over a model's parameters.
_address_of, _is_conjugated, _is_negated = torch.Tensor.data_ptr, torch.Tensor.is_conj, torch.Tensor.is_neg


def addresses_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Where they start; 0 for those without elements."""
    return list(map(_address_of, tensors))


def bring(
    tensors: Sequence[torch.Tensor], addresses: Sequence[int], device: torch.device
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    """The tensors as a plan takes them: on the device, with all their bits in memory, at multiples of 16 bytes; and
    what was copied, by number.
    """
    brought: list[torch.Tensor] = list(tensors)
    copies: dict[int, torch.Tensor] = {}
    if (
        min(addresses, default=0) >= FIRST_ADDRESS
        and not reduce(or_, addresses) % INPUT_ALIGNMENT_BYTES
        and not any(map(_is_conjugated, tensors))
        and not any(map(_is_negated, tensors))
    ):
        return brought, copies
    elsewhere = [n for n, t in enumerate(tensors) if t.device.type != "webgpu"]
    for n, t in zip(elsewhere, moved([tensors[n] for n in elsewhere], device)):
        brought[n], copies[n] = t, tensors[n]
    for n, (t, address) in enumerate(zip(brought, addresses)):
        if n not in copies and (address % INPUT_ALIGNMENT_BYTES or t.is_conj() or t.is_neg()):
            brought[n], copies[n] = copied(t), t
    return brought, copies


def moved(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """CPU tensors without dimensions on the device: those of a dtype lie side by side, and take one upload."""
    by_number: dict[int, torch.Tensor] = {}
    for dtype in dict.fromkeys([t.dtype for t in tensors]):
        places = [n for n, t in enumerate(tensors) if t.dtype == dtype]
        spacing = max(1, INPUT_ALIGNMENT_BYTES // dtype.itemsize)
        rows = torch.zeros(len(places), spacing, dtype=dtype, device="cpu")
        rows[:, 0] = torch.stack([tensors[n] for n in places])
        rows = rows.to(device)
        by_number.update([(n, as_strided(rows, (), (), row * spacing)) for row, n in enumerate(places)])
    return [by_number[n] for n in range(len(tensors))]


def in_memory(t: torch.Tensor) -> torch.Tensor:
    """``t`` without flags that say that it is conjugated or negated."""
    return t.resolve_conj().resolve_neg()


def copied(t: torch.Tensor) -> torch.Tensor:
    """A tensor of the layout of ``t`` in memory of its own, also where its elements overlap; conjugated, or negated,
    there where ``t`` only says so.
    """
    flat = t.as_strided((extent(t.shape, t.stride()),), (1,), t.storage_offset())
    flat = in_memory(flat) if flat.is_conj() or flat.is_neg() else flat.clone()
    return flat.as_strided(t.shape, t.stride(), 0)


def shared(pointers: Sequence[int], written: Sequence[int]) -> Iterator[int]:
    """Which inputs must move for those that are ``written`` to have their allocations for themselves.

    Inputs that overlap while one is written are no graph's: AOTAutograd makes one of them.
    """
    if len({pointer >> ADDRESS_BITS for pointer in pointers}) == len(pointers):
        return
    owner: dict[int, int] = {}
    for n in written:
        if pointers[n] and owner.setdefault(pointers[n] >> ADDRESS_BITS, n) != n:
            yield n
    if owner:
        for n in set(range(len(pointers))).difference(written):
            if pointers[n] >> ADDRESS_BITS in owner:
                yield n
