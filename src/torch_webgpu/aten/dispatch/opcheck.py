"""``torch.library.opcheck`` on webgpu: PyTorch's own checks, one of which lists the devices that it knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .torch_abi import DEVICE_TYPE, is_webgpu

OPTESTS = "torch.testing._internal.optests"
MODULES = (f"{OPTESTS}.autograd_registration", f"{OPTESTS}.generate_tests", OPTESTS)
"""Where the function is, and those that take it from there."""

LISTED = {"xpu": DEVICE_TYPE, "AutogradXPU": "AutogradPrivateUse1"}


def allow_webgpu(plain: Callable[..., None]) -> Callable[..., None]:
    """``autograd_registration_check`` takes webgpu as it takes XPU: it knows devices, and their keys, by name.

    https://github.com/pytorch/pytorch/blob/main/torch/testing/_internal/optests/autograd_registration.py
    """
    for_webgpu = of_webgpu(plain)

    @wraps(plain)
    def check(op: Any, args: Any, kwargs: Any) -> Any:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        return (for_webgpu if any(map(is_webgpu, tensors)) else plain)(op, args, kwargs)

    return check


def of_webgpu(function: Any) -> Callable[..., Any]:
    """A function of PyTorch's with webgpu in the place of XPU, wherever its code names that."""

    def renamed(constant: Any) -> Any:
        if isinstance(constant, tuple):
            return tuple(map(renamed, constant))
        return LISTED.get(constant, constant) if isinstance(constant, str) else constant

    code: CodeType = function.__code__
    code = code.replace(co_consts=tuple(map(renamed, code.co_consts)))
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
