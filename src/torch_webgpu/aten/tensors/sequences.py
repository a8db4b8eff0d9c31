"""Tensors whose elements follow from their position: ranges, identity matrices, windows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch

from torch_webgpu.aten.dispatch.memory_overlap import check_writable
from torch_webgpu.aten.dispatch.operations import record_pointwise
from torch_webgpu.aten.dispatch.register_pointwise import opmath
from torch_webgpu.aten.dispatch.results import not_implemented
from torch_webgpu.aten.dispatch.torch_abi import aten, impl
from torch_webgpu.caches import Cache
from torch_webgpu.dtypes import BY_NAME, BY_TORCH
from torch_webgpu.engine.recipe import Excerpt, Recipe
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

from .factories import check, device_index

Formula = Callable[..., Expr]
"""From this point's row-major number (in the dtype computed in) and the scalars to the value."""


def fill_by_position(name: str, out: torch.Tensor, formula: Formula, numbers: list[Any], dtype: str) -> torch.Tensor:
    """Fills ``out`` with ``formula`` of the numbers, computed in ``dtype``."""
    check_writable(out.shape, out.stride())
    kind = BY_NAME[dtype].kind
    scalars = [(kind, value) for value in numbers]
    record_pointwise(name, [], [out], at_position, (formula, len(numbers), dtype), scalars)
    return out


def at_position(formula: Formula, count: int, dtype: str) -> Expr:
    return formula(ops.to_dtype(ops.linear(), dtype), *(ops.param(k, dtype) for k in range(count)))


def computed_in(dtype: torch.dtype) -> str:
    """As :func:`opmath` says, integers in 64 bits: a range may leave a smaller type and come back."""
    return opmath(dtype) if dtype.is_floating_point else "i64"


def arange(start: float, end: float, step: float = 1, *, out: torch.Tensor) -> torch.Tensor:
    """``start + i * step`` in [start, end)."""
    if out.dtype == torch.bool or out.dtype.is_complex:
        raise not_implemented("arange_webgpu", out.dtype)
    size = range_size(start, end, step, out.dtype)
    if out.numel() not in (0, size):
        warnings.warn(
            f"The number of elements in the out tensor of shape {list(out.shape)} is {out.numel()} which does not "
            f"match the computed number of elements {size}. Note that this may occur as a result of rounding error. "
            f"The out tensor will be resized to a tensor of shape ({size},).",
            stacklevel=2,
        )
    return ramp("aten.arange", with_numel(out, size), start, step)


def arange_end(end: float, *, out: torch.Tensor) -> torch.Tensor:
    return arange(0, end, 1, out=out)


def new_range(
    start: float,
    end: float,
    step: float = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """:func:`arange` into a new tensor. PyTorch would make it empty, and have it resized."""
    check(layout, pin_memory)
    if dtype is None:
        is_whole = isinstance(start, int) and isinstance(end, int) and isinstance(step, int)
        dtype = torch.int64 if is_whole else torch.get_default_dtype()
    index = device_index(device)
    key = (index, dtype, start, end, step, start.__class__, end.__class__, step.__class__)
    recipe = _ranges.get(key) or _ranges.promote(key)
    if recipe is not None:
        return recipe.run((), [])
    eng, size = engine(), range_size(start, end, step, dtype)
    check_numel(size)
    excerpt = Excerpt(eng, index, [])
    result = excerpt.run(lambda: arange(start, end, step, out=eng.empty((size,), dtype, index)))
    recipe = excerpt.recipe((), result)
    if recipe is not None:
        _ranges[key] = recipe
    return result


def new_range_to(end: float, **options: Any) -> torch.Tensor:
    return new_range(0, end, 1, **options)


_ranges: Cache[Hashable, Recipe] = Cache("ranges", 1024)


def range_size(start: float, end: float, step: float, dtype: torch.dtype) -> int:
    """How many elements ``arange`` has; RuntimeError, in PyTorch's words, for a range that makes no sense."""
    check_range(start, end, step)
    if all(isinstance(v, int) for v in (start, end, step)):
        return -((start - end) // step)  # type: ignore[return-value]
    if dtype == torch.int64 and truncates_int64():
        start, end, step = int(start), int(end), int(step)
        if step == 0:
            raise ValueError("step must be nonzero")
        check_range(start, end, step)
    return math.ceil((end - start) / step)


@cache
def truncates_int64() -> bool:
    """Whether ``arange`` of int64 truncates its ends before it counts, as PyTorch did before 2.14: later it counts in
    double precision, as for other integers.
    """

    return torch.arange(0.0, 1.5, dtype=torch.int64, device="cpu").numel() == 1


def check_range(start: float, end: float, step: float) -> None:
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")


def inclusive_range(start: float, end: float, step: float = 1, *, out: torch.Tensor) -> torch.Tensor:
    """``torch.range``: like ``arange``, with ``end``."""
    check_range(start, end, step)
    return ramp("aten.range", with_numel(out, math.floor((end - start) / step) + 1), start, step)


def with_numel(out: torch.Tensor, size: int) -> torch.Tensor:
    """``out``, in whatever shape if it has ``size`` elements; else made a vector of so many."""
    check_numel(size)
    return out if out.numel() == size else out.resize_((size,))


def check_numel(size: int) -> None:
    if size >= 1 << 63:
        raise RuntimeError("invalid size, possible overflow?")


def ramp(name: str, out: torch.Tensor, start: float, step: float) -> torch.Tensor:
    return fill_by_position(name, out, line, [start, step], computed_in(out.dtype))


def line(i: Expr, start: Expr, step: Expr) -> Expr:
    return start + i * step


def between(i: Expr, start: Expr, end: Expr, step: Expr, last: Expr) -> Expr:
    """Point ``i`` of evenly spaced ones, of which ``last`` is the last, counted from the nearer end, so that both ends
    are exact.
    """
    return ops.where(i < last * 0.5, start + i * step, end - (last - i) * step)


def power_between(i: Expr, start: Expr, end: Expr, step: Expr, last: Expr, base: Expr) -> Expr:
    return ops.pow(base, between(i, start, end, step, last))


def linspace(start: float, end: float, steps: int, *, out: torch.Tensor) -> torch.Tensor:
    return spaced("aten.linspace", torch.linspace, between, out, start, end, steps)


def logspace(start: float, end: float, steps: int, base: float = 10.0, *, out: torch.Tensor) -> torch.Tensor:
    return spaced("aten.logspace", torch.logspace, power_between, out, start, end, steps, base)


def spaced(
    name: str, on_cpu: Callable[..., torch.Tensor], formula: Formula, out: torch.Tensor, start: float, end: float,
    steps: int, *base: float,
) -> torch.Tensor:  # fmt: skip
    """Fills ``out`` with ``steps`` numbers between two ends.

    Integers are truncated doubles, which most adapters cannot compute: they, complex numbers and powers of doubles come
    from the CPU.
    """
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    out = with_numel(out, steps)
    if not out.dtype.is_floating_point or (base and out.dtype == torch.float64):
        return out.copy_(on_cpu(start, end, steps, *base, dtype=out.dtype, device="cpu").view(out.shape))
    last = max(steps - 1, 1)
    return fill_by_position(name, out, formula, [start, end, (end - start) / last, last, *base], opmath(out.dtype))


def eye(n: int, *, out: torch.Tensor) -> torch.Tensor:
    return eye_m(n, n, out=out)


def eye_m(n: int, m: int, *, out: torch.Tensor) -> torch.Tensor:
    """Ones on the diagonal of an n × m matrix, zeros elsewhere."""
    check_sides(n, m)
    return fill_eye(out.resize_((n, m)))


def fill_eye(out: torch.Tensor) -> torch.Tensor:
    if out.dtype not in BY_TORCH:
        return out.copy_(torch.eye(*out.shape, dtype=out.dtype, device="cpu"))
    check_writable(out.shape, out.stride())
    record_pointwise("aten.eye", [], [out], on_diagonal)
    return out


def new_eye(n: int, m: int | None = None, **options: Any) -> torch.Tensor:
    """:func:`eye_m` into a new tensor. PyTorch would make it empty, and have it resized."""
    m = n if m is None else m
    check_sides(n, m)
    return fill_eye(torch.empty((n, m), **options))


def check_sides(n: int, m: int) -> None:
    for name, size in (("n", n), ("m", m)):
        if size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")


def on_diagonal() -> Expr:
    return ops.eq(ops.index(0), ops.index(1))


def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> torch.Tensor:
    """``i0(beta * sqrt(1 - (2i / (n - 1) - 1)²)) / i0(beta)``. (The other windows are composites.)"""
    if window_length < 0:
        raise RuntimeError(f"kaiser_window requires non-negative window_length, got window_length={window_length}")
    device = torch.device("webgpu", device_index(options.get("device")))
    dtype = options.get("dtype") or torch.get_default_dtype()
    if window_length <= 1:
        return torch.ones(window_length, dtype=dtype, device=device)
    last = window_length if periodic else window_length - 1
    x = torch.arange(window_length, dtype=torch.float32, device=device) * (2 / last) - 1
    scale = torch.i0(torch.tensor(beta, dtype=torch.float64, device="cpu")).item()
    return (torch.i0(beta * (1 - x * x).clamp_(min=0).sqrt_()) / scale).to(dtype)


def register() -> None:
    for overload, kernel in (
        (aten.arange.default, new_range_to),
        (aten.arange.start, new_range),
        (aten.arange.start_step, new_range),
        (aten.arange.out, arange_end),
        (aten.arange.start_out, arange),
        (aten.range.out, inclusive_range),
        (aten.linspace.out, linspace),
        (aten.logspace.out, logspace),
        (aten.eye.default, new_eye),
        (aten.eye.m, new_eye),
        (aten.eye.out, eye),
        (aten.eye.m_out, eye_m),
        (aten.kaiser_window.default, kaiser_window),
        (aten.kaiser_window.periodic, kaiser_window),
        (aten.kaiser_window.beta, kaiser_window),
    ):
        impl(overload, kernel)
