"""Expressions computed with PyTorch's operators, on any device: what the CPU runs, and kernels are compared with.

Everything that PyTorch does with its own operators it does with this composition: derivatives of any order,
forward-mode, ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_webgpu.aten.dispatch.expressions import number
from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk

U32 = 0xFFFFFFFF
special: Any = torch.special


def both(tensors: Callable[..., Any], clamp: str) -> Callable[..., Any]:
    """A maximum or minimum: with a number it is PyTorch's ``clamp``, whose derivative at the bound is 1."""

    def extreme(x: Any, y: Any) -> Any:
        for a, b in ((x, y), (y, x)):
            if not isinstance(b, torch.Tensor):
                return torch.clamp(tensor(a), **{clamp: b})
        return tensors(x, y)

    return extreme


def tensor(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.as_tensor(x)


def of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes no numbers."""

    def call(*operands: Any) -> Any:
        like = next((x for x in operands if isinstance(x, torch.Tensor)), None)
        return function(*[full(x, like) for x in operands])

    return call


def full(x: Any, like: torch.Tensor | None) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x
    return torch.as_tensor(x) if like is None else torch.full((), x, dtype=like.dtype, device=like.device)


def where(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, bool):
        return x if condition else y
    return torch.where(condition, x, y)


def fma(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


ROWS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "truediv": lambda x, y: x / y,
    "neg": lambda x: -x, "abs": abs, "fma": fma, "where": where,
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    "maximum": both(torch.maximum, "min"), "minimum": both(torch.minimum, "max"),
    "truncdiv": of_tensors(lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    "pow": of_tensors(torch.pow), "bitwise_left_shift": of_tensors(torch.bitwise_left_shift),
    "bitwise_right_shift": of_tensors(torch.bitwise_right_shift), "bitwise_not": of_tensors(torch.bitwise_not),
    "bitwise_and": of_tensors(torch.bitwise_and), "bitwise_or": of_tensors(torch.bitwise_or),
    "bitwise_xor": of_tensors(torch.bitwise_xor), "sigmoid": of_tensors(torch.sigmoid),
    "ldexp": lambda x, e: x * of_tensors(torch.exp2)(e), "polygamma": lambda n, x: torch.polygamma(int(n), x),
    **{
        name: of_tensors(getattr(torch, name))
        for name in "fmod remainder atan2 hypot copysign reciprocal sign logical_and logical_or logical_not "
        "isnan isinf floor ceil trunc round sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
        "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sinc i0".split()
    },
    **{name: of_tensors(getattr(special, name)) for name in "erfcx i0e i1 i1e ndtr ndtri log_ndtr".split()},
}  # fmt: skip
"""PyTorch's functions by the rows of the op table."""


def evaluate(roots: Sequence[Expr], loads: Sequence[Any], params: Sequence[Any], double: bool) -> list[Any]:
    """The values of ``roots`` for these tensors and numbers. ``double``: float64 takes the place of f32."""
    known: dict[Expr, Any] = {}

    def torch_dtype(name: str) -> torch.dtype:
        if double and name == "f32":
            return torch.float64
        return torch.int64 if name == "u32" else BY_NAME[name].torch

    for e in walk(roots):
        if e.op == "const":
            known[e] = number(e)
        elif e.op == "load":
            known[e] = loads[e.args[0]]
        elif e.op == "param":
            known[e] = params[e.args[0]]
        elif e.op == "to_dtype":
            known[e] = converted(known[e.args[0]], torch_dtype(e.dtype), e.dtype == "u32")
        else:
            value = ROWS[e.op](*[known[a] for a in e.args])
            known[e] = value & U32 if e.dtype == "u32" else value
    return [known[root] for root in roots]


def converted(x: Any, dtype: torch.dtype, wraps: bool) -> Any:
    if isinstance(x, torch.Tensor):
        x = x.to(dtype)
    elif dtype is torch.bool:
        x = bool(x)
    elif not dtype.is_floating_point:
        x = int(x)
    else:
        x = float(x)
    return x & U32 if wraps else x
