"""Dtypes that webgpu tensors can have though no kernel computes with them: 8-bit floats, uint64, complex32, complex128.

Making, filling, viewing and copying them is what their kernels do themselves. All else runs on the CPU, counted, and
raises what the CPU raises, except where elements only move: that is done on integers of their size. Programs
that hold such tensors pay for looking at each call's arguments; no other program does, since the kernels are replaced
when the first such tensor is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from torch_webgpu.aten.dispatch.fallback import run_on_cpu
from torch_webgpu.aten.dispatch.torch_abi import KERNELS, aten, cpu_kernel, impl, is_webgpu, overloads, wrap_kernels
from torch_webgpu.aten.quantized.float8 import NAMES as FLOAT8
from torch_webgpu.dtypes import BY_TORCH
from torch_webgpu.engine.store import Store

SERVE_THEMSELVES = frozenset(
    {"copy", "factories", "fft", "hash", "join", "scaled_mm", "storage", "storage_only", "views"}
)
"""Families of operators whose kernels take these dtypes."""

MOVES = frozenset(
    overload
    for name in (
        "_index_put_impl_ embedding flip index index_put index_put_ index_select masked_select roll where"
    ).split()
    for overload in overloads(name).values()
)
"""Operators whose result has elements of their operands, bit by bit, for the 8-bit floats that the CPU takes, too."""

ACCUMULATING = frozenset({aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default})


def holds_any(values: Iterable[Any]) -> bool:
    """Whether there is a webgpu tensor of such a dtype among arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dtype not in BY_TORCH and is_webgpu(value):
                return True
        elif value.__class__ in (list, tuple) and holds_any(value):
            return True
    return False


def is_move(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call can be made on the codes: the elements that it moves are 8-bit floats of one type."""
    if overload not in MOVES:
        return False
    if overload in ACCUMULATING and ((len(args) > 3 and args[3]) or torch.float8_e8m0fnu is args[0].dtype):
        return False
    moved = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
    return len({t.dtype for t in moved}) == 1 and all(t.dtype in FLOAT8 and is_webgpu(t) for t in moved)


def on_codes(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = next(t.dtype for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dtype in FLOAT8)
    given: dict[int, torch.Tensor] = {}

    def codes(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in FLOAT8:
            return value
        view = value.view(torch.uint8)
        given[id(view)] = value
        return view

    result = overload(*tree_map(codes, args), **tree_map(codes, kwargs))
    return given[id(result)] if id(result) in given else result.view(dtype)


def guarded(op: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any] | None:
    if KERNELS[op] in SERVE_THEMSELVES and op not in MOVES:
        return None

    # An error's place tells the operator of a frame by the name ``op``.
    def guard(*args: Any, **kwargs: Any) -> Any:
        if not holds_any(args) and not (kwargs and holds_any(kwargs.values())):
            return kernel(*args, **kwargs)
        if is_move(op, args, kwargs):
            return on_codes(op, args, kwargs)
        return run_on_cpu(op, args, kwargs, "no kernel computes with a dtype among its arguments")

    return guard


@cache
def guard_kernels() -> None:
    """Has every kernel that does not know these dtypes look for them first."""
    wrap_kernels(guarded)


def register() -> None:
    Store.when_storage_only(guard_kernels)
    plain = cpu_kernel(aten.view.dtype)

    @wraps(plain)
    def view_dtype(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in BY_TORCH:
            guard_kernels()
        return plain(self, dtype)

    impl(aten.view.dtype, view_dtype)
