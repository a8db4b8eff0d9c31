"""The allocator's own functions: raw memory, pools, fractions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import torch

from .target import HERE, DeviceLike

_alive: dict[int, torch.UntypedStorage] = {}
_pools = count(1)


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: Any = None) -> int:
    """The address of ``size`` new bytes, which the memory figures count: a virtual one on webgpu."""
    if size < 0:
        raise ValueError(f"Invalid memory size {size}")
    storage = torch.empty(max(size, 1), dtype=torch.uint8, device=HERE.device(device)).untyped_storage()
    _alive[storage.data_ptr()] = storage
    return storage.data_ptr()


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what :func:`caching_allocator_alloc` gave; RuntimeError for another address."""
    if _alive.pop(mem_ptr, None) is None:
        raise RuntimeError(f"invalid device pointer: {mem_ptr:#x}")


@contextmanager
def caching_allocator_disabled(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Changes nothing."""
    yield


def get_allocator_backend() -> str:
    """The target's name: its own allocator."""
    return HERE.type


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """1: no limit is set."""
    HERE.index(device)
    return 1.0


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """As webgpu's own, but no error where nobody tells how much memory the adapter has: there is no limit then."""
    index = HERE.index(device)
    with suppress(RuntimeError):
        torch.webgpu.set_per_process_memory_fraction(fraction, index)  # type: ignore[attr-defined]


class MemPool:
    """A name for a pool. Its tensors come from the one pool there is."""

    def __init__(self, allocator: Any = None, *args: Any, **kwargs: Any) -> None:
        self.allocator = allocator
        self.id = (0, next(_pools))

    def use_count(self) -> int:
        """1: this object."""
        return 1

    def snapshot(self) -> list[Any]:
        """No segments are its own."""
        return []


@contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Changes nothing: allocations come from the one pool there is."""
    HERE.index(device)
    yield
