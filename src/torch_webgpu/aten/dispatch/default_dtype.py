"""Caches of what PyTorch answered, which depends on the default dtype as well as on what was asked.

``x * 1.5`` for integers, ``x / 2`` and ``x.sqrt()`` have that dtype. It is in no key, since asking for it would cost
every operation: when it changes, the caches' contents are exchanged for those that were made under the new one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from torch_webgpu.caches import Cache

from .torch_abi import METAS

Contents = TypeVar("Contents", bound=dict[Any, Any])

_caches: list[dict[Any, Any]] = [METAS]
_set_aside: dict[torch.dtype, list[tuple[dict[Any, Any], dict[Any, Any]]]] = {}


def by_default_dtype(cache: Contents) -> Contents:
    """``cache``, with other contents for each default dtype. For those that live as long as the process."""
    _caches.append(cache)
    return cache


def exchange(before: torch.dtype, after: torch.dtype) -> None:
    """Gives every cache the contents that it had when ``after`` was the default dtype."""
    _set_aside[before] = [(cache, cache.everything() if isinstance(cache, Cache) else dict(cache)) for cache in _caches]
    for cache in _caches:
        cache.clear()
    for cache, contents in _set_aside.pop(after, []):
        for key, value in contents.items():
            cache[key] = value
