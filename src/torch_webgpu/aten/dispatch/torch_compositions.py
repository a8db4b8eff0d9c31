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


def record_composition(
    overload: OpOverload,
    composes: Callable[..., bool] | None = None,
    instead: Callable[..., torch.Tensor] | None = None,
) -> None:
    """Lets what PyTorch composes of operators, into a new tensor, be one recipe where nobody sees the parts.

    Each part would pass the dispatcher and Python by itself: a linear layer is a transposition, a view, a product and
    a view; of a norm two of three results are for nobody. Derivatives, transforms, modes and profilers see the parts,
    and tensors of other kinds have parts of their own; and so has what ``composes(*arguments)``: those of PyTorch, or
    what ``instead(parts, *arguments)`` returns.
    """
    parts, places = autograd_kernel(overload), places_of_tensors(overload)
    parts = parts if instead is None else partial(instead, parts)
    only_tensors = len(places) == len(overload._schema.arguments)
    recorded = record_once(parts, reads=is_extraordinary)
    grad_is_enabled, modes = torch.is_grad_enabled, torch._C._len_torch_dispatch_stack
    transform = torch._C._functorch.peek_interpreter_stack

    def kernel(*args: Any) -> torch.Tensor:
        if (
            (
                grad_is_enabled()
                and any(
                    [  # noqa: C419  faster
                        t is not None and t.requires_grad
                        for t in (args if only_tensors else [args[k] for k in places if k < len(args)])
                    ]
                )
            )
            or modes()
            or transform() is not None
            or forward_ad._current_level >= 0
            or profiler._is_profiler_enabled
            or (composes is not None and composes(*args))
        ):
            return parts(*args)
        return recorded(*args)

    recompose(overload, kernel)


def is_observed() -> bool:
    """Whether a dispatch mode, a transform or a tracer is told which operators a call is made of, or tangents are."""
    return bool(torch._C._len_torch_dispatch_stack() or in_transform() or torch._C._get_tracing_state() is not None)


def places_of_tensors(overload: OpOverload) -> list[int]:
    """Which arguments are tensors, or may be."""
    kinds = ("Tensor", "Optional[Tensor]")
    return [k for k, argument in enumerate(overload._schema.arguments) if str(argument.type) in kinds]


def is_extraordinary(*args: Any) -> bool:
    """Whether a tensor among these is not an ordinary one on webgpu."""
    return any(
        isinstance(t, torch.Tensor)
        and (t.__class__ not in ORDINARY or t.layout is not torch.strided or not is_webgpu(t))
        for t in args
    )


def autograd_kernel(overload: OpOverload) -> Callable[..., Any]:
    """PyTorch's kernel with the operator's derivative, or its composition, whatever is registered for it afterwards."""
    kernel = torch.library.get_kernel(overload, AUTOGRAD_KEY)
    names = (AUTOGRAD_KEY, "ADInplaceOrView", BACKEND_KEY) if is_inplace(overload) else (AUTOGRAD_KEY, BACKEND_KEY)
    keys = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names]
    return partial(kernel.call_boxed, reduce(or_, keys))
