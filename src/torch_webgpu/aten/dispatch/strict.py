"""``out=`` overloads that, as in PyTorch, take no other dtype than the result's and no memory of an input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch._prims_common.wrappers import _maybe_resize_out

from .memory_overlap import check_apart, check_writable, is_same
from .results import name_of
from .variants import check_devices, check_meta

Apart = Literal["all", "others", "none"]
WrongDtype = Callable[[torch.Tensor, torch.Tensor], Exception]
"""The error for a result and the output of another dtype that it was to be written to."""

CPP_NAMES = {
    torch.bool: "bool",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short int",
    torch.int32: "int",
    torch.int64: "long int",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "c10::complex<float>",
}


def expected(result: torch.Tensor, out: torch.Tensor) -> Exception:
    names = (CPP_NAMES.get(t.dtype, str(t.dtype)) for t in (result, out))
    return RuntimeError("Expected out tensor to have dtype {}, but got {} instead".format(*names))


def same_scalar_type(name: str) -> WrongDtype:
    return lambda result, out: RuntimeError(f"{name}(): self and result must have the same scalar type")


def cannot_cast(name: str) -> WrongDtype:
    message = "torch.{}(): input types can't be cast to the desired output type {}"
    return lambda result, out: TypeError(message.format(name, name_of(out.dtype)))


@dataclass(frozen=True)
class Strict:
    """What ``out=`` tensors may be: of the result's dtype, and apart from inputs.

    ``wrong(result, out)``: the error for another dtype. ``casts``: dtypes that PyTorch would cast the result to are
    fine. ``apart``: which inputs share no memory with an output; among "others" the first argument is not, if it is the
    output itself.
    """

    wrong: WrongDtype = expected
    casts: bool = False
    apart: Apart = "all"


def strict_out(overload: OpOverload, fn: Callable[..., Any], strict: Strict) -> Callable[..., Any]:
    """The kernel of an ``out=`` overload over the functional kernel ``fn``."""
    names = [a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        check_devices(outs)
        result = fn(*args, **kwargs)
        results = (result,) if isinstance(result, torch.Tensor) else result
        for out, value in zip(outs, results, strict=True):
            if out.dtype != value.dtype and not (strict.casts and torch.can_cast(value.dtype, out.dtype)):
                raise strict.wrong(value, out)
            if out.numel():
                check_writable(out.shape, out.stride())
            if strict.apart != "none":
                itself = strict.apart == "others" and is_same(out, args[0])
                check_apart(out, (*args[itself:], *kwargs.values()))
        check_meta(overload, args, {**kwargs, **dict(zip(names, outs, strict=True))})
        for out, value in zip(outs, results, strict=True):
            if out.shape != value.shape:
                _maybe_resize_out(out, value.shape)
                out.as_strided_(value.shape, value.stride())
            out.copy_(value)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return kernel
