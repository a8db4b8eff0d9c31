"""Mixed precision: names of devices in ``torch.amp`` and ``torch.cuda.amp``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .target import HERE, Around, local_name


@Around
def of_device_type(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function with an argument ``device_type``, its first where it is given by position."""

    @wraps(plain)
    def named(*args: Any, **kwargs: Any) -> Any:
        if "device_type" in kwargs:
            kwargs["device_type"] = local_name(kwargs["device_type"])
        return plain(*[local_name(arg) if isinstance(arg, str) else arg for arg in args], **kwargs)

    return named


def custom_fwd(fwd: Any = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """``torch.amp.custom_fwd`` for the target."""
    return torch.amp.custom_fwd(fwd, device_type=HERE.type, cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """``torch.amp.custom_bwd`` for the target."""
    return torch.amp.custom_bwd(bwd, device_type=HERE.type)


@Around
def is_autocast_enabled(plain: Callable[..., bool]) -> Callable[..., bool]:
    """Without a device type CUDA's is meant: the target's."""

    @wraps(plain)
    def is_autocast_enabled(device_type: str | None = None) -> bool:
        return plain(HERE.type if device_type is None else local_name(device_type))

    return is_autocast_enabled


@Around
def set_autocast_enabled(plain: Callable[..., None]) -> Callable[..., None]:
    """``set_autocast_enabled(device_type, enabled)``, and the older ``set_autocast_enabled(enabled)``."""

    @wraps(plain)
    def set_autocast_enabled(*args: Any) -> None:
        *device_type, enabled = args
        plain(local_name(device_type[0]) if device_type else HERE.type, enabled)

    return set_autocast_enabled


def get_autocast_gpu_dtype() -> torch.dtype:
    """The dtype that autocast computes in on the target."""
    return torch.get_autocast_dtype(HERE.type)


def set_autocast_gpu_dtype(dtype: torch.dtype) -> None:
    """Sets it."""
    torch.set_autocast_dtype(HERE.type, dtype)
