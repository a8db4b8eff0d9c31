"""The ``out=`` and in-place overloads of operators that are not per-element, derived from the functional one.

They run the functional kernel and copy its result where it belongs, so an output may overlap an input in any way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch._ops import OpOverload

from torch_webgpu.ir.ops import MissingKindError

from .fallback import run_on_cpu
from .recorded_once import traced
from .refusals import check_as_cpu
from .results import check_cast, write
from .torch_abi import DEVICE_TYPE, Meta, functional_of, impl, infer, is_inplace, is_out, overloads


def register_functional(target: str | OpOverload, fn: Callable[..., Any], *, out_decides: bool = True) -> None:
    """Registers ``fn`` as the kernel of an operator and derives the kernels of what PyTorch derives from it.

    ``target`` is a functional overload (``aten.sum.dim_IntList``) or a name (``"cumsum"``), which stands for every
    functional overload of that name. ``fn`` takes the overload's arguments and returns new tensors; what it records
    follows from their layouts (:func:`.recorded_once.traced`). Its ``out=`` and
    in-place overloads get kernels that check as PyTorch's meta kernels do, call ``fn`` and copy. ``out_decides``:
    whether one that takes a dtype computes, unless it is given one, in that of its output.
    """
    if isinstance(target, str):
        for overload in overloads(target).values():
            if not is_out(overload) and not is_inplace(overload) and is_numeric(overload):
                register_functional(overload, fn, out_decides=out_decides)
        return
    fn = traced(guarded(target, fn))
    impl(target, fn)
    name = target._schema.name.split("::")[1]
    for candidate in (*overloads(name).values(), *overloads(f"{name}_").values()):
        if candidate is target or functional_of(candidate) is not target:
            continue
        kernel = out_variant(candidate, fn, out_decides) if is_out(candidate) else inplace_variant(candidate, fn)
        impl(candidate, kernel)


def guarded(overload: OpOverload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn``, or the CPU where the op table lacks an operation on a dtype; a dtype that the CPU refuses, it refuses."""

    @wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except MissingKindError as reason:
            return run_on_cpu(overload, args, kwargs, str(reason))

    return kernel


def is_numeric(overload: OpOverload) -> bool:
    """Whether the dispatcher can meet it with a webgpu tensor: it takes one, and no dimension by name."""
    types = [str(a.type) for a in overload._schema.arguments]
    return any("Tensor" in t for t in types) and not any("Dimname" in t or t == "str" for t in types)


def out_variant(overload: OpOverload, fn: Callable[..., Any], out_decides: bool = True) -> Callable[..., Any]:
    """The kernel of an ``out=`` overload over the functional kernel ``fn``."""
    arguments = overload._schema.arguments
    names = [a.name for a in arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write]
    position = next((i for i, a in enumerate(arguments) if a.name == "dtype" and out_decides), None)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        check_devices(outs)
        checked = check_meta(overload, args, {**kwargs, **dict(zip(names, outs))})
        if checked and position is not None and position >= len(args) and kwargs.get("dtype") is None:
            # PyTorch computes in the dtype of the output it is given, where its meta kernel allows another one.
            kwargs["dtype"] = outs[0].dtype
        result = fn(*args, **kwargs)
        results = (result,) if isinstance(result, torch.Tensor) else result
        if any(out.dtype != value.dtype for out, value in zip(outs, results, strict=True)):
            check_as_cpu(overload, *args, **kwargs, **dict(zip(names, outs)))  # some take no other dtype than theirs
        for out, value in zip(outs, results, strict=True):
            write(value, out)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel


def inplace_variant(overload: OpOverload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an in-place overload over the functional kernel ``fn``."""

    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        check_meta(overload, (self, *args), kwargs)
        result = fn(self, *args, **kwargs)
        check_cast(result.dtype, self.dtype)
        return self.copy_(result)

    return kernel


def check_meta(overload: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Meta] | None:
    """Raises what PyTorch's meta kernel raises for these arguments; None where it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of resized outputs: write() warns, each time
        try:
            return infer(overload, *args, **kwargs)
        except NotImplementedError:
            return None


def check_devices(outs: Sequence[torch.Tensor]) -> None:
    for out in outs:
        if out.device.type != DEVICE_TYPE:
            raise RuntimeError(f"Expected out tensor to have device {DEVICE_TYPE}, but got {out.device} instead")
