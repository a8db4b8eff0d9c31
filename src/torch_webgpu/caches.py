"""Bounded caches with names: every cache of the package that can grow is one of these.

One policy: what has not been used for the longest time goes. :class:`Cache` keeps two generations, so that a hit costs
what a dictionary's does and no order is kept up to date; :func:`memoized` is :func:`functools.lru_cache`, whose order
is kept in C.

Functions whose arguments have few values (a kernel's source by name) use :func:`functools.cache` and are not listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


class CacheStats(NamedTuple):
    """Of all caches of one name: how many there are, their entries, the most that each keeps (in entries, or in what
    its entries weigh), and how many entries made room for others.
    """

    instances: int
    entries: int
    limit: int
    evicted: int


class Cache(dict[K, V]):
    """A dictionary whose entries weigh at most ``limit`` together, one each if not told otherwise; those that were used
    last stay.

    It holds the young generation; :meth:`promote` brings back an entry of the old one, and so counts as a use. When the
    young one has half the limit, it becomes the old one, and what was old is evicted. So whatever is among the last
    half of the limit stays, and a hit, ``cache.get(key)``, costs nothing but the look-up::

        value = cache.get(key) or cache.promote(key)
        if value is None:
            value = cache[key] = make(key)

    ``weigh(value)``: how much of the limit an entry takes; one that takes more than all of it stays alone.
    ``evicted(key, value)`` is called for each that makes room, not for those that :meth:`clear` or :meth:`pop` take
    away. Threads may share a cache: the worst that a race costs is an entry that is made again.
    """

    __slots__ = ("__weakref__", "_evicted", "_old", "_old_weight", "_weigh", "_weight", "evictions", "limit", "name")

    def __init__(
        self,
        name: str,
        limit: int,
        weigh: Callable[[V], int] | None = None,
        evicted: Callable[[K, V], object] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.limit, self.evictions = name, limit, 0
        self._weigh, self._evicted = weigh, evicted
        self._old: dict[K, V] = {}
        self._weight = self._old_weight = 0
        _CACHES[id(self)] = self

    @property
    def entries(self) -> int:
        """Of both generations; ``len`` counts the young one alone."""
        return len(self) + len(self._old)

    def everything(self) -> dict[K, V]:
        """The entries of both generations, old ones first."""
        return {**self._old, **self}

    def promote(self, key: K) -> V | None:
        """The old generation's entry, which is young from now on; None where there is none."""
        value = self._old.get(key)
        if value is not None:
            self[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        """Puts an entry in, in place of what was there."""
        if key in self or key in self._old:
            self.pop(key)
        weight = 1 if self._weigh is None else self._weigh(value)
        if self and 2 * (self._weight + weight) > self.limit:
            self._drop_old()
            self._old, self._old_weight = dict(self), self._weight
            super().clear()
            self._weight = 0
        if self._weight + weight + self._old_weight > self.limit:
            self._drop_old()
        super().__setitem__(key, value)
        self._weight += weight

    def pop(self, key: K, default: Any = None) -> Any:
        """Takes an entry away, of whichever generation, and returns it."""
        if key in self:
            value = super().pop(key)
            self._weight -= 1 if self._weigh is None else self._weigh(value)
        elif key in self._old:
            value = self._old.pop(key)
            self._old_weight -= 1 if self._weigh is None else self._weigh(value)
        else:
            return default
        return value

    def evict(self) -> None:
        """Evicts all entries."""
        self._drop_old()
        self._old = dict(self)
        super().clear()
        self._weight = 0
        self._drop_old()

    def clear(self) -> None:
        """Forgets all entries."""
        super().clear()
        self._old.clear()
        self._weight = self._old_weight = 0

    def _drop_old(self) -> None:
        old, self._old, self._old_weight = self._old, {}, 0
        self.evictions += len(old)
        if self._evicted is not None:
            for key, value in old.items():
                self._evicted(key, value)


_CACHES: WeakValueDictionary[int, Cache[Any, Any]] = WeakValueDictionary()
_FUNCTIONS: dict[str, Any] = {}


def memoized(name: str, limit: int) -> Callable[[F], F]:
    """Decorator: the function's last ``limit`` results are kept, and listed by :func:`cache_stats` under ``name``."""

    def decorate(function: F) -> F:
        assert name not in _FUNCTIONS, name
        _FUNCTIONS[name] = lru_cache(maxsize=limit)(function)
        return _FUNCTIONS[name]

    return decorate


def cache_stats() -> dict[str, CacheStats]:
    """What the bounded caches hold, by name: see :class:`CacheStats`."""
    instances: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    evicted: Counter[str] = Counter()
    limits: dict[str, int] = {}
    for cache in list(_CACHES.values()):
        instances[cache.name] += 1
        entries[cache.name] += cache.entries
        evicted[cache.name] += cache.evictions
        limits[cache.name] = cache.limit
    for name, function in _FUNCTIONS.items():
        info = function.cache_info()
        instances[name], entries[name], limits[name] = 1, info.currsize, info.maxsize
        evicted[name] = info.misses - info.currsize
    return {
        name: CacheStats(instances[name], entries[name], limit, evicted[name]) for name, limit in sorted(limits.items())
    }
