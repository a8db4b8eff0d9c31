"""Which CPU tensors are pinned: those that ``Tensor.pin_memory()`` made, and views of them, as long as these live.

The memory is ordinary, since WebGPU pins none. What being pinned means is PyTorch's contract for it: a copy from the
device with ``non_blocking=True`` does not wait for the device.
"""

from __future__ import annotations

import weakref

import torch

_pinned: dict[int, weakref.ref[torch.Tensor]] = {}
"""By the addresses of their storages."""


def pin(t: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor that counts as pinned."""
    copy = t.clone()
    address = copy.untyped_storage().data_ptr()
    if address:

        def forget(dead: weakref.ref[torch.Tensor]) -> None:
            if _pinned.get(address) is dead:
                del _pinned[address]

        _pinned[address] = weakref.ref(copy, forget)
    return copy


def is_pinned(t: torch.Tensor) -> bool:
    """Whether a tensor lies in memory that counts as pinned."""
    return bool(_pinned) and t.is_cpu and t.untyped_storage().data_ptr() in _pinned
