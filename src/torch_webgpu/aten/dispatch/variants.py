"""The ``out=`` and in-place overloads of operators that are not per-element, derived from the functional one.

They run the functional kernel and copy its result where it belongs, so an output may overlap an input in any way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .refusals import check_as_cpu
from .results import Strided, check_cast, write
from .torch_abi import DEVICE_TYPE, Meta, infer


def out_variant(
    overload: OpOverload, fn: Callable[..., Any], out_decides: bool = True, strided: Strided = "never"
) -> Callable[..., Any]:
    """The kernel of an ``out=`` overload over the functional kernel ``fn``; for ``strided`` see :data:`Strided`."""
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
            write(value, out, strided)
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
