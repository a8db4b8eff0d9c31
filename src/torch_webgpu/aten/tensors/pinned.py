"""Which CPU tensors are pinned: those that ``Tensor.pin_memory()`` and ``pin_memory=True`` made, and views of them.

The memory is ordinary, since WebGPU pins none. What being pinned means is PyTorch's contract for it: a copy from the
device with ``non_blocking=True`` does not wait for the device.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torch_webgpu.aten.dispatch.torch_abi import DEVICE_TYPE, aten, cpu_kernel, impl
from torch_webgpu.aten.dispatch.torch_hooks import PINNED

_pinned: dict[int, weakref.ref[torch.Tensor]] = {}
"""By the addresses of their storages."""


def pin(t: torch.Tensor) -> torch.Tensor:
    """A copy of a CPU tensor that counts as pinned."""
    copy = t.clone()
    address = copy.untyped_storage().data_ptr()
    if address:

        def forget(dead: weakref.ref[torch.Tensor]) -> None:
            if _pinned.get(address) is dead:
                del _pinned[address]

        _pinned[address] = weakref.ref(copy, forget)
    return copy


def is_pinned(t: torch.Tensor) -> bool:
    """Whether a tensor lies in memory that counts as pinned."""
    if not t.is_cpu:
        return False
    return (bool(_pinned) and t.untyped_storage().data_ptr() in _pinned) or PINNED.has_made(t)


def pinning_device(device: Any) -> str:
    """The type of the device to pin for: the one asked for, else CUDA or XPU where present, as before webgpu was.

    PyTorch takes webgpu for the current accelerator once it is registered, also beside those (at::getAccelerator).
    """
    if device is not None:
        return torch.device(device).type
    if torch.cuda.is_available():
        return "cuda"
    return "xpu" if torch.xpu.is_available() else DEVICE_TYPE


def register() -> None:
    """Kernels for dense CPU tensors: PyTorch's want an allocator of pinned memory, and a Python backend names none."""
    plain_pin, plain_pinned = map(cpu_kernel, (aten._pin_memory.default, aten.is_pinned.default))

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        target = pinning_device(device)
        return pin(self) if target == DEVICE_TYPE else plain_pin(self, torch.device(target))

    def pinned(self: torch.Tensor, device: Any = None) -> bool:
        target = pinning_device(device)
        return is_pinned(self) if target == DEVICE_TYPE else plain_pinned(self, torch.device(target))

    impl(aten._pin_memory.default, pin_memory, "CPU")
    impl(aten.is_pinned.default, pinned, "CPU")
