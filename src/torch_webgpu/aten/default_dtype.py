"""Caches of what PyTorch answered, which depends on the default dtype as well as on what was asked.

``x * 1.5`` for integers, ``x / 2`` and ``x.sqrt()`` have that dtype. It is in no key, since asking for it would cost
every operation: when it changes, the caches' contents are exchanged for those that were made under the new one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from . import torch_patches
from .torch_abi import METAS

Cache = TypeVar("Cache", bound=dict[Any, Any])

_caches: list[dict[Any, Any]] = [METAS]
_set_aside: dict[torch.dtype, list[tuple[dict[Any, Any], dict[Any, Any]]]] = {}


def by_default_dtype(cache: Cache) -> Cache:
    """``cache``, with other contents for each default dtype. For those that live as long as the process."""
    _caches.append(cache)
    return cache


def exchange(before: torch.dtype, after: torch.dtype) -> None:
    """Gives every cache the contents that it had when ``after`` was the default dtype."""
    _set_aside[before] = [(cache, dict(cache)) for cache in _caches if cache]
    for cache, _ in _set_aside[before]:
        cache.clear()
    for cache, kept in _set_aside.pop(after, []):
        cache.update(kept)


def register() -> None:
    torch_patches.observe_default_dtype(exchange)
