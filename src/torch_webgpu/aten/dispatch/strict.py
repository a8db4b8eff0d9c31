"""``out=`` overloads that, as in PyTorch, take no other dtype than the result's and no memory of an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch._prims_common.wrappers import _maybe_resize_out

from torch_webgpu.layout import extent, is_dense

from .register_pointwise import check_writable
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


def check_apart(out: torch.Tensor, values: Sequence[Any]) -> None:
    """Raises, in PyTorch's words, if ``out`` and a tensor among ``values`` share memory."""
    for value in values:
        if isinstance(value, (list, tuple)):
            check_apart(out, value)
        elif isinstance(value, torch.Tensor) and overlap(value, out):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are one part of one storage."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors without gaps share memory; like PyTorch, this does not judge those with gaps."""
    if not is_dense(a.shape, a.stride()) or not is_dense(b.shape, b.stride()):
        return False
    if a.device != b.device or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (begin_a, end_a), (begin_b, end_b) = (
        (t.storage_offset() * t.element_size(), (t.storage_offset() + extent(t.shape, t.stride())) * t.element_size())
        for t in (a, b)
    )
    return begin_a < end_b and begin_b < end_a
