"""PyTorch's own kernels of operators that it composes of others, and ours in their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad, profiler

from .recorded_once import record_once
from .torch_abi import AUTOGRAD_KEY, BACKEND_KEY, has_kernel, in_transform, is_composite, is_inplace, is_webgpu, library

COMPOSITIONS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def composite(overload: OpOverload) -> Callable[..., Any]:
    """PyTorch's composition of an operator of others, whatever is registered for it."""
    key = next(key for key in COMPOSITIONS if has_kernel(overload, key))
    return partial(overload._op_dk, getattr(torch._C.DispatchKey, key))


def recompose(overload: OpOverload, composition: Callable[..., Any]) -> None:
    """Puts ours in the place of PyTorch's composition of an operator, which gets no kernel of its own by that."""
    for key in (AUTOGRAD_KEY, BACKEND_KEY) if is_composite(overload) else (BACKEND_KEY,):
        library(key).impl(overload, composition, key, allow_override=True)


def leave_to_tracers(overload: OpOverload) -> None:
    """Lets tracers have PyTorch's composition in Python, if there is one, of what :func:`recompose` was called for.

    They would have ours by the keys that it is registered for, and through it the composition in C++, some of whose
    operators fake tensors have no kernels for.
    """
    composition = overload.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd)
    if composition is not None:
        for key in (AUTOGRAD_KEY, BACKEND_KEY):
            overload.py_impl(getattr(torch._C.DispatchKey, key))(composition)


ORDINARY = (torch.Tensor, torch.nn.Parameter)


def record_composition(overload: OpOverload) -> None:
    """Lets what PyTorch composes of operators of tensors, into a new one, be one recipe where nobody sees the parts.

    Each part would pass the dispatcher and Python by itself: a linear layer is a transposition, a view, a product and
    a view. Derivatives, transforms, modes and profilers see the parts, and tensors of other kinds have parts of their
    own.
    """
    parts = autograd_kernel(overload)
    recorded = record_once(parts, reads=is_extraordinary)
    grad_is_enabled, modes = torch.is_grad_enabled, torch._C._len_torch_dispatch_stack
    transform = torch._C._functorch.peek_interpreter_stack

    def kernel(*args: Any) -> torch.Tensor:
        if (
            (grad_is_enabled() and any([t is not None and t.requires_grad for t in args]))  # noqa: C419  faster
            or modes()
            or transform() is not None
            or forward_ad._current_level >= 0
            or profiler._is_profiler_enabled
        ):
            return parts(*args)
        return recorded(*args)

    recompose(overload, kernel)


def is_observed() -> bool:
    """Whether a dispatch mode, a transform or a tracer is told which operators a call is made of, or tangents are."""
    return bool(torch._C._len_torch_dispatch_stack() or in_transform() or torch._C._get_tracing_state() is not None)


def is_extraordinary(*args: torch.Tensor | None) -> bool:
    """Whether one of these tensors is not an ordinary one on webgpu."""
    return any(
        t is not None and (t.__class__ not in ORDINARY or t.layout is not torch.strided or not is_webgpu(t))
        for t in args
    )


def autograd_kernel(overload: OpOverload) -> Callable[..., Any]:
    """PyTorch's kernel with the operator's derivative, or its composition, whatever is registered for it afterwards."""
    kernel = torch.library.get_kernel(overload, AUTOGRAD_KEY)
    names = (AUTOGRAD_KEY, "ADInplaceOrView", BACKEND_KEY) if is_inplace(overload) else (AUTOGRAD_KEY, BACKEND_KEY)
    keys = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names]
    return partial(kernel.call_boxed, reduce(or_, keys))
