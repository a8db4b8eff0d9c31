"""Kernels that run once per signature: from then on what they recorded is recorded again without running them.

A composite kernel costs PyTorch calls, meta kernels and look-ups for every operation it records, though all of that
follows from its arguments' layouts. With :func:`record_once` the host cost of any kernel becomes that of one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch

from torch_webgpu.engine.recipe import Excerpt, Params, Recipe, aliasing_of
from torch_webgpu.engine.record import engine

from .precision import float32_matmul_precision
from .recipes import Recipes, part, precision_of, starts_of
from .torch_abi import exclude_autocast, is_deterministic

OperatorKernel = Callable[..., Any]


def record_once(
    fn: OperatorKernel,
    numbers: Callable[[Sequence[Any]], Params] | None = None,
    reads_flags: bool = False,
    by_mode: bool = False,
    reads: Callable[..., bool] | None = None,
) -> OperatorKernel:
    """``fn``, a kernel that records operations as its arguments' layouts and plain values tell it to, and nothing else
    does.

    It must return new tensors, tensor arguments or None. Calls in which it reads values back, uploads some or draws
    random numbers have no recipe.

    ``numbers(arguments)``: for a kernel that records one operation, whose parameters these are; the numbers among its
    arguments decide nothing else. ``reads_flags``: it is handed tensors that are negated by a flag, as copies are.
    ``by_mode``: in deterministic mode it records something else, and so runs each time. ``reads(*arguments)``: for a
    kernel that reads values back in some calls, whether it may in one that no recipe is known for: none is made then.
    """
    recipes: Recipes[Recipe] = Recipes(reads_flags)
    numbers_vary = numbers is not None

    def unrecognised(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reads is not None and reads(*args, **kwargs):
            return uncast(fn, args, kwargs)
        tensors: list[torch.Tensor] = []
        values = (*args, *kwargs.values())
        precision = float32_matmul_precision() if recipes.by_precision else None
        key = *[part(v, tensors, numbers_vary) for v in values], *kwargs, precision
        starts = starts_of(tensors)
        if starts is None:
            return uncast(fn, args, kwargs)
        aliasing = aliasing_of(starts)
        for signature in (key, (key, aliasing)) if aliasing else (key,):
            found = recipes.get(signature)
            result = NotImplemented if found is None else found.run(values, starts)
            if result is not NotImplemented:
                recipes.guard(signature, args, kwargs, numbers_vary)
                return result
        device = tensors[0].get_device()
        excerpt = Excerpt(engine(), device, starts)
        result = excerpt.run(partial(uncast, fn, args, kwargs))
        recipe = excerpt.recipe(values, result, numbers)
        if recipe is not None and all(t.get_device() == device for t in tensors) and is_known(recipe, precision):
            recipes.keep(signature, recipe)
            recipes.guard(signature, args, kwargs, numbers_vary)
        return result

    def is_known(recipe: Recipe, precision: str | None) -> bool:
        """Whether the key of a recipe says for which precision of products it was made, if that matters."""
        needed = precision_of(recipe)
        recipes.by_precision |= needed is not None
        return needed in (None, precision)

    kernel = recipes.kernel(unrecognised)
    return wraps(fn)(except_in_deterministic_mode(kernel, fn) if by_mode else kernel)


def always(*_args: Any, **_kwargs: Any) -> bool:
    """``reads`` of a kernel that reads values back in every call, as whose results' sizes are values do."""
    return True


def except_in_deterministic_mode(kernel: OperatorKernel, fn: OperatorKernel) -> OperatorKernel:
    """``kernel``, or ``fn`` in deterministic mode."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (fn if is_deterministic() else kernel)(*args, **kwargs)

    return chosen


def uncast(fn: OperatorKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls ``fn`` without autocast for its own operations: recipes serve with and without it, as CUDA's kernels do."""
    with exclude_autocast():
        return fn(*args, **kwargs)
