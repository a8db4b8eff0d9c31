"""What operators do for the signatures seen so far: one cache for all of them, with one bound.

A call finds its recipe by a guard (:mod:`.guards`), in a microsecond, or else by a key of its whole signature. The
oldest recipes are dropped when there are too many; one that is still wanted is made again, once in as many signatures
as there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from torch_webgpu.caches import Cache
from torch_webgpu.engine.recipe import Recipe, RunFunction
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.store import address_of
from torch_webgpu.engine.tensor import FIRST_ADDRESS
from torch_webgpu.kernels.matmul import matmul

from .default_dtype import by_default_dtype
from .guards import NUMBERS, Guard, guard_for
from .precision import where_precision_is

CACHE_SIZE = 20_000
"""Signatures of all operators."""
GUARDS_PER_SHAPE = 6
"""Of one operator's first argument; half of them may be for tensors that share memory in a certain way."""


@dataclass
class Statistics:
    """Counts since the process started: recipes made and dropped, and calls that no guard but a key recognised."""

    made: int = 0
    dropped: int = 0
    by_key: int = 0


@dataclass
class Kept:
    """What was found out; the first argument's shape (:func:`first_shape`), if guards recognise its calls."""

    found: Any
    shape: Hashable = None


Found = TypeVar("Found")

statistics = Statistics()


class Recipes(Generic[Found]):
    """What was found out about one operator's signatures: recipes, or why there is none."""

    def __init__(self, reads_flags: bool = False) -> None:
        self.reads_flags = reads_flags
        """Whether the operator is handed real tensors that are negated by a flag."""
        self.by_precision = False
        """Whether what is allowed for products of float32 decides any of its recipes, and so is part of its keys."""
        self.guarded: dict[Hashable, list[tuple[Guard, RunFunction]]] = by_default_dtype({})
        """By the first argument's shape."""

    def get(self, key: Hashable) -> Found | None:
        """What is known about calls with this key."""
        kept = _kept.get((self, key)) or _kept.promote((self, key))
        if kept is None:
            return None
        statistics.by_key += 1
        return kept.found

    def keep(self, key: Hashable, found: Found) -> None:
        """Remembers what was found out about calls with this key."""
        with engine().lock:
            _kept[self, key] = Kept(found)
            statistics.made += 1

    def guard(self, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers_vary: bool) -> None:
        """Lets a guard recognise calls like this one, whose :class:`Recipe` is kept, if one can and there is room."""
        shape = first_shape(args[0]) if args else None
        if shape is None:
            return
        guards, kept = self.guarded.get(shape, []), _kept.get((self, key))
        if kept is None:
            return
        aliased = bool(kept.found.aliasing)
        if len(guards) >= (GUARDS_PER_SHAPE // 2 if aliased else GUARDS_PER_SHAPE):
            return
        guard = guard_for(args, kwargs, numbers_vary, self.reads_flags)
        precision = precision_of(kept.found)
        if guard is not None and precision is not None:
            guard = where_precision_is(precision, guard)
        if guard is not None:
            # One for all tensors comes before those for tensors that share memory, which look the same to a guard.
            kept.shape = shape
            guards.insert(len(guards) if aliased else 0, (guard, kept.found.run))
            self.guarded[shape] = guards

    def _unguard(self, dropped: Kept) -> None:
        guards = self.guarded.get(dropped.shape)
        if guards is not None and isinstance(dropped.found, Recipe):
            guards[:] = [(guard, run) for guard, run in guards if run is not dropped.found.run]
            if not guards:
                del self.guarded[dropped.shape]

    def kernel(self, otherwise: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Callable[..., Any]:
        """What does for calls that a guard recognises what their recipes say, and ``otherwise(args, kwargs)``."""
        guarded = self.guarded

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if args:
                first = args[0]
                shape = first_shape(first) if first.__class__ is list else getattr(first, "shape", None)
                for guard, run in guarded.get(shape, ()):
                    starts = guard(args, kwargs)
                    if starts is not None:
                        result = run((*args, *kwargs.values()) if kwargs else args, starts)
                        if result is not NotImplemented:
                            return result
            return otherwise(args, kwargs)

        return kernel


def _drop(key: tuple[Recipes[Any], Hashable], dropped: Kept) -> None:
    key[0]._unguard(dropped)
    statistics.dropped += 1


_kept: Cache[tuple[Recipes[Any], Hashable], Kept] = by_default_dtype(Cache("recipes", CACHE_SIZE, evicted=_drop))


def first_shape(first: Any) -> Hashable:
    """The shape of a call's first argument; of a list its length and the shape of its first item. None for others."""
    if first.__class__ is not list:
        return getattr(first, "shape", None)
    shape = getattr(first[0], "shape", None) if first else None
    return None if shape is None else (len(first), shape)


def precision_of(recipe: Recipe) -> str | None:
    """What was allowed for products of float32, if that decided what a recipe records."""
    found = (matmul.precision_of(instruction.op) for instruction in recipe.instructions)
    return next((precision for precision in found if precision is not None), None)


def clear() -> None:
    """Forgets all recipes, as if no operator had been called."""
    with engine().lock:
        for owner, _ in _kept.everything():
            owner.guarded.clear()
        _kept.clear()


def part(value: Any, tensors: list[torch.Tensor], numbers_vary: bool = False) -> Any:
    """The key of an argument: how a tensor is laid out and to be read, or the value; collects the tensors.

    Where a tensor starts decides how it can be moved in fours and, of sub-word types, written.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        start, device = value.data_ptr() & 15, value.get_device()
        # Products are among what PyTorch hands lazily conjugated tensors to.
        return value.shape, value.stride(), value.dtype, device, start, value.is_conj(), value.is_neg()
    if isinstance(value, (tuple, list)):
        return tuple([part(v, tensors) for v in value])
    if numbers_vary and value.__class__ in NUMBERS:
        return value.__class__
    # 1, 1.0 and True are equal and hash alike, but promote differently; so do 0.0 and -0.0, which are not the same.
    return value.__class__, value if value.__class__ is not float or value else str(value)


def starts_of(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """Where tensors start; None unless there are some, all of them webgpu's."""
    starts = [t.data_ptr() for t in tensors]
    if not starts or min(starts) < FIRST_ADDRESS:
        starts = [address_of(t) for t in tensors]
        if not starts or min(starts) < FIRST_ADDRESS:
            return None
    return starts
