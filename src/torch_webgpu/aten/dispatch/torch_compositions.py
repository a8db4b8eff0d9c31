"""PyTorch's own kernels of operators that it composes of others, and ours in their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch._ops import OpOverload

from .torch_abi import AUTOGRAD_KEY, BACKEND_KEY, has_kernel, is_composite, is_inplace, library

COMPOSITIONS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def composite(overload: OpOverload) -> Callable[..., Any]:
    """PyTorch's composition of an operator of others, whatever is registered for it."""
    key = next(key for key in COMPOSITIONS if has_kernel(overload, key))
    return partial(overload._op_dk, getattr(torch._C.DispatchKey, key))


def recompose(overload: OpOverload, composition: Callable[..., Any]) -> None:
    """Puts ours in the place of PyTorch's composition of an operator, which gets no kernel of its own by that."""
    for key in (AUTOGRAD_KEY, BACKEND_KEY) if is_composite(overload) else (BACKEND_KEY,):
        library(key).impl(overload, composition, key, allow_override=True)


def autograd_kernel(overload: OpOverload) -> Callable[..., Any]:
    """PyTorch's kernel with the operator's derivative, whatever is registered for it afterwards."""
    kernel = torch.library.get_kernel(overload, AUTOGRAD_KEY)
    names = (AUTOGRAD_KEY, "ADInplaceOrView", BACKEND_KEY) if is_inplace(overload) else (AUTOGRAD_KEY, BACKEND_KEY)
    keys = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names]
    return partial(kernel.call_boxed, reduce(or_, keys))
