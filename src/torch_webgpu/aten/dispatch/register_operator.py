"""Registration of operators whose kernels are functions of tensors: reductions, kernels, compositions of others.

Such a function runs once per signature of its arguments (:mod:`.recorded_once`), and does for the ``out=`` and in-place
overloads of its operator, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch._ops import OpOverload

from torch_webgpu.engine.recipe import Params
from torch_webgpu.ir.ops import MissingKindError

from .fallback import run_on_cpu
from .recorded_once import record_once
from .results import Strided
from .strict import Strict, strict_out
from .torch_abi import functional_of, impl, is_inplace, is_out, overloads
from .variants import inplace_variant, out_variant


def register_operator(
    target: OpOverload,
    fn: Callable[..., Any],
    *,
    strict: Strict | None = None,
    out_decides: bool = True,
    strided: Strided = "never",
    by_mode: bool = False,
    numbers: Callable[[Sequence[Any]], Params] | None = None,
    in_place: Callable[..., Any] | None = None,
    reads: Callable[..., bool] | None = None,
) -> None:
    """Registers ``fn`` as the kernel of an operator and derives the kernels of what PyTorch derives from it.

    ``target`` is a functional overload (``aten.sum.dim_IntList``), or one that is alone of its kind. ``fn`` takes its
    arguments and returns new tensors, or arguments; what it records follows from their layouts and plain values. The
    ``out=`` and in-place overloads of a functional one get kernels that check as PyTorch's meta kernels do, call ``fn``
    and copy. ``strict``: what ``out=`` tensors may be, where that is less than PyTorch casts; nothing in place is
    derived then. ``in_place``: the kernel of the in-place overload, where it does more than to copy. ``out_decides``:
    whether one that takes a dtype computes, unless it is given one, in that of its output. ``strided``: which ``out=``
    tensors get the strides of results. For ``by_mode``, ``numbers`` and ``reads`` see
    :func:`.recorded_once.record_once`.
    """
    kernel = record_once(guarded(target, fn), numbers, by_mode=by_mode, reads=reads)
    impl(target, kernel)
    name = target._schema.name.split("::")[1]
    for overload in (*overloads(name).values(), *overloads(f"{name}_").values()):
        if overload is target or functional_of(overload) is not target:
            continue
        if is_out(overload):
            if strict:
                impl(overload, strict_out(overload, kernel, strict))
            else:
                impl(overload, out_variant(overload, kernel, out_decides, strided))
        elif is_inplace(overload) and not strict:
            impl(overload, in_place or inplace_variant(overload, kernel))


def guarded(overload: OpOverload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn``, or the CPU where the op table lacks an operation on a dtype; a dtype that the CPU refuses, it refuses."""

    @wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except MissingKindError as reason:
            return run_on_cpu(overload, args, kwargs, str(reason))

    return kernel
