"""What every program loads of this package: the backend's name, and functions that load the rest with the first group.

``import torch`` imports ``torch.distributed``; a program that makes no process group gets nothing more than the name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from torch_webgpu.on_import import when_imported

NAME = "webgpu"
"""Of the backend, and of the device."""
RING = "torch.distributed.tensor.experimental._context_parallel._attention"
"""Where PyTorch has context parallelism."""


def register_backend(module: Any) -> None:
    """Makes "webgpu" a backend, and what process groups take for tensors of the device by default.

    ``module``: torch.distributed.distributed_c10d.
    """
    if hasattr(module, "Backend"):
        module.Backend.register_backend(NAME, _create, extended_api=True, devices=[NAME])


def _create(options: Any, backend_options: Any) -> Any:
    return _part("groups").create(options, backend_options)


def _part(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


def lazily(part: str, function: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of a part of this package that makes another of a function, and loads the part when it does."""

    def make(plain: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = getattr(_part(part), function)(plain)
        return made

    return make


def completing_groups(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``_new_process_group_helper``: new groups take tensors of webgpu and of the CPU, and survive restarts."""

    @wraps(plain)
    def new_process_group(
        size: int, rank: Any, ranks: Any, backend: Any, store: Any, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        while at_first_group:
            at_first_group.pop(0)()
        if rank is not None and rank >= 0 and _is_of_device(backend):
            if not ranks:
                store = _part("restarts").store_of_attempt(store, rank, size, kwargs["timeout"])
            store = _part("torch_c10d").unused_part(store, name, rank)
        group, store = plain(size, rank, ranks, backend, store, name, *args, **kwargs)
        if hasattr(group, "_device_types"):
            _part("groups").complete(group, store, ranks, kwargs["timeout"], named_each=":" in str(backend))
        return group, store

    return new_process_group


def _is_of_device(backend: Any) -> bool:
    """Whether a process group, by the backend that was asked for, is one of webgpu's, and none of gloo's or others'."""
    name = str(backend)
    if name != "undefined":
        return NAME in name.replace(":", ",").split(",")
    return is_the_accelerator()


def is_the_accelerator() -> bool:
    """Whether webgpu is what PyTorch takes for the accelerator of this machine."""
    from torch import accelerator

    device = accelerator.current_accelerator()
    return device is not None and device.type == NAME


def draining(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``destroy_process_group``: after the group's collectives are complete."""

    @wraps(plain)
    def destroy_process_group(group: Any = None) -> None:
        from torch import distributed

        _part("sequence").drain_group(None if group is distributed.group.WORLD else group)
        plain(group)

    return destroy_process_group


def load() -> None:
    """Registers the kernels of collectives, and rules for DTensor where that is imported."""
    _part("collectives").register()
    when_imported("torch.distributed.tensor", lambda module: _part("torch_dtensor").register(module))
    when_imported(RING, lambda module: _part("context_parallel").register(module))


at_first_group: list[Callable[[], None]] = [load]
"""What is done when the first process group is made."""
