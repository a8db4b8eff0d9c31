"""Several processes: NCCL's place is taken by Gloo, on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from .target import Around

ON_CPU = (
    "there is no NCCL here: the backend is gloo, whose collectives take tensors on the CPU. Collectives of several "
    "processes on the device itself are not there yet"
)


def backend_here(backend: Any) -> Any:
    """ "nccl" → "gloo"; "cpu:gloo,cuda:nccl" → "cpu:gloo"; the rest as it is."""
    if not isinstance(backend, str):
        return backend
    parts = [part for part in backend.lower().split(",") if part.partition(":")[0] != "cuda"]
    if not parts:
        return "gloo"
    named = ",".join(part.replace("nccl", "gloo") for part in parts)
    return named if named != backend.lower() else backend


@Around
def with_backend(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function with an argument ``backend``, its first where it is given by position."""

    @wraps(plain)
    def named(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs["backend"] if "backend" in kwargs else args[0] if args else None
        backend = backend_here(asked)
        if backend != asked:
            warnings.warn(ON_CPU, UserWarning, stacklevel=3)
        if "backend" in kwargs:
            kwargs["backend"] = backend
        elif args:
            args = (backend, *args[1:])
        if backend == "gloo":
            kwargs.pop("device_id", None)
        return plain(*args, **kwargs)

    return named


@Around
def new_group(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``new_group(ranks, backend="nccl")``"""

    @wraps(plain)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        if "backend" in kwargs:
            kwargs["backend"] = backend_here(kwargs["backend"])
        return plain(*args, **kwargs)

    return new_group


@Around
def init_device_mesh(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A mesh of the device is one of the CPU, where the collectives are."""

    @wraps(plain)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return plain("cpu" if device_type in ("cuda", "webgpu", "mps") else device_type, *args, **kwargs)

    return init_device_mesh


def is_available_as_gloo() -> bool:
    """Whether "nccl" is answered: where Gloo is."""
    from torch import distributed

    return distributed.is_available() and distributed.is_gloo_available()
