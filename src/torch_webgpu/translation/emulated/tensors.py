"""Methods of tensors, modules and storages that name a device, a stream or a type of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .target import HERE, Around, DeviceLike, local_name
from .types import TensorType, asked_type


def to_device(
    self: torch.Tensor, device: DeviceLike = None, non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:  # fmt: skip
    """``Tensor.cuda``: a copy on the target, or the tensor itself if it is there."""
    if device is None and self.device.type == HERE.type:
        return self
    there = HERE.type if device is None else HERE.device(device)
    return self.to(there, non_blocking=non_blocking, memory_format=memory_format)


def storage_to_device(self: Any, device: DeviceLike = None, non_blocking: bool = False) -> Any:
    """``UntypedStorage.cuda`` and ``TypedStorage.cuda``."""
    return self.to(device=HERE.device(device), non_blocking=non_blocking)


def module_to_device(self: torch.nn.Module, device: DeviceLike = None) -> torch.nn.Module:
    """``Module.xpu``, ``Module.mtia``: parameters and buffers on the target."""
    return self.to(HERE.device(device))


@Around
def tensor_type(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``x.type(torch.cuda.HalfTensor)`` and ``x.type("torch.cuda.HalfTensor")``"""

    @wraps(plain)
    def type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        asked = asked_type(dtype)
        if asked is None:
            return plain(self, dtype, non_blocking, **kwargs)
        return self.to(HERE.type, asked.dtype, non_blocking=non_blocking)

    return type


@Around
def set_default_tensor_type(plain: Callable[[Any], None]) -> Callable[[Any], None]:
    """A type of the device sets the default dtype and the default device; one of the CPU sets that back."""

    @wraps(plain)
    def set_default_tensor_type(t: Any) -> None:
        asked: TensorType | None = asked_type(t)
        if asked is not None:
            torch.set_default_dtype(asked.dtype)
            torch.set_default_device(HERE.type)
            HERE.tensors = asked
            return
        if torch.get_default_device().type == HERE.type:
            torch.set_default_device(None)
        HERE.tensors = torch.Tensor
        plain(t)

    return set_default_tensor_type


@Around
def of_device(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose only argument is a device: ``pin_memory("cuda")``, ``is_pinned("cuda")``."""

    @wraps(plain)
    def method(self: Any, device: Any = None) -> Any:
        named = local_name(device)
        return plain(self) if named is None or torch.device(named).type == "cpu" else plain(self, device=named)

    return method


@Around
def generator(plain: Callable[..., torch.Generator]) -> Callable[..., torch.Generator]:
    """``torch.Generator(device="cuda")``"""

    @wraps(plain)
    def generator(device: Any = "cpu") -> torch.Generator:
        return plain(device=local_name(device))

    return generator
