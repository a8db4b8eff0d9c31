"""``nn.DataParallel`` over several adapters: when it takes them, and what its threads are told.

A module that is on the CPU stays there, and is used as where there is no accelerator: another device's being there
changes nothing for a program that does not use it. Once the module is on webgpu, when it is wrapped or later, it is
replicated as PyTorch does it. A program for CUDA that is translated gets PyTorch's own rule, which moves modules.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain
from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE

from .adapters import adapters_alike

ASKED = "_webgpu_devices_asked"
"""The attribute that holds what a DataParallel was asked for, while its module has not been on webgpu."""
OF_DEVICES = ("device_ids", "output_device", "src_device_obj")


def _is_available() -> bool:
    """Whether PyTorch would take webgpu, which it looks for after all devices of its own."""
    module: Any = sys.modules[torch.nn.DataParallel.__module__]
    return bool(module._get_available_device_type() == DEVICE_TYPE)


def constructing(plain: Callable[..., None]) -> Callable[..., None]:
    """``DataParallel.__init__``"""

    @wraps(plain)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        if not _is_available():
            plain(self, module, device_ids, output_device, dim)
            return
        torch.nn.Module.__init__(self)
        self.module, self.dim, self.device_ids = module, dim, []
        setattr(self, ASKED, (device_ids, output_device))
        _take_devices(self, plain)

    return init


def _take_devices(parallel: Any, construct: Callable[..., None]) -> None:
    """Gives it devices, as PyTorch does when it is made, if its module is on webgpu."""
    first = next(chain(parallel.module.parameters(), parallel.module.buffers()), None)
    if first is None or first.device.type != DEVICE_TYPE:
        return
    made: Any = object.__new__(torch.nn.DataParallel)
    construct(made, parallel.module, *getattr(parallel, ASKED), parallel.dim)
    for name in OF_DEVICES:
        setattr(parallel, name, getattr(made, name))
    setattr(parallel, ASKED, None)


def forwarding(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``DataParallel.forward``"""

    @wraps(plain)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if self.__dict__.get(ASKED) is not None:
            _take_devices(self, inspect.unwrap(torch.nn.DataParallel.__init__))
        return plain(self, *inputs, **kwargs)

    return forward


def devices_alike(plain: Callable[[], list[int] | None]) -> Callable[[], list[int] | None]:
    """The devices that are taken where none is named: all that are like the first. The slowest sets the pace."""

    @wraps(plain)
    def all_device_indices() -> list[int] | None:
        return adapters_alike() if _is_available() else plain()

    return all_device_indices


def applying(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``parallel_apply``: devices have the names of webgpu's, and threads the autocast of the one that starts them.

    PyTorch's threads are told whether CUDA's is on.
    """

    @wraps(plain)
    def parallel_apply(
        modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any = None, devices: Any = None
    ) -> list[Any]:
        if devices is not None:
            devices = [_number(device) for device in devices]
        if torch.is_autocast_enabled(DEVICE_TYPE):
            modules = list(map(_under_autocast, modules))
        applied: list[Any] = plain(modules, inputs, kwargs_tup, devices)
        return applied

    return parallel_apply


def _number(device: Any) -> Any:
    """Of an adapter by its name, where PyTorch takes names of CUDA's alone."""
    if isinstance(device, (str, torch.device)):
        named = torch.device(device)
        return named.index if named.type == DEVICE_TYPE else device
    return device


def _under_autocast(module: Callable[..., Any]) -> Callable[..., Any]:
    dtype, caches = torch.get_autocast_dtype(DEVICE_TYPE), torch.is_autocast_cache_enabled()

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(DEVICE_TYPE, dtype, cache_enabled=caches):
            return module(*args, **kwargs)

    return call


def asking_nccl(plain: Callable[..., bool]) -> Callable[..., bool]:
    """``torch.cuda.nccl.is_available``: no for tensors of webgpu, without a warning that PyTorch was built without."""

    @wraps(plain)
    def is_available(tensors: Sequence[torch.Tensor]) -> bool:
        return False if any(tensor.device.type == DEVICE_TYPE for tensor in tensors) else plain(tensors)

    return is_available
