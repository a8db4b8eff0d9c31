"""PyTorch takes a device that is not here as an argument, and uses the one that stands in for it.

Every operator that makes a tensor on a named device allocates it by one of two others, which the dispatcher looks up
by that device: kernels for them allocate on the device that is here. What fills the tensor then runs where it is, so
no path that runs for each operator gains anything. Tensors say where they really are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_webgpu.aten.dispatch import torch_guard

from .replacements import Replacements

KEYS = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "mtia": "MTIA"}
"""The dispatcher's key of each device type."""


class Alias:
    """From ``absent``, a device type, to ``target``; from :meth:`install` to :meth:`undo`."""

    def __init__(self, absent: str, target: str) -> None:
        self.absent, self.target = absent, target
        self.library = torch.library.Library("aten", "IMPL", KEYS[absent])
        self.give_guard_back: Callable[[], None] | None = None

    def install(self) -> None:
        """Registers the kernels and the guard."""
        target, self.target = self.target, "cpu"
        with warnings.catch_warnings():  # PyTorch built for the device has kernels, which are of no use without one
            warnings.filterwarnings("ignore", "(.|\\n)*overrid", UserWarning)
            for name in ("empty.memory_format", "empty_strided"):
                self.library.impl(name, self.kernel(name), allow_override=True)
        initialize(self.absent)
        self.target = target
        self.give_guard_back = torch_guard.stand_in(self.absent, target)

    def kernel(self, name: str) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        operator, local = getattr(getattr(torch.ops.aten, packet), overload or "default"), self.local

        def allocate(*args: Any, device: torch.device | None = None, pin_memory: object = None, **kwargs: Any) -> Any:
            return operator(*args, device=local(device), **kwargs)

        return allocate

    def local(self, device: torch.device | None) -> torch.device:
        if device is None or device.index is None or self.target == "cpu":
            return torch.device(self.target)
        return torch.device(self.target, device.index)

    def undo(self) -> None:
        """Takes back what was registered."""
        self.library._destroy()
        if self.give_guard_back is not None:
            self.give_guard_back()


def initialize(absent: str) -> None:
    """Lets C++ note that a device type is initialized, which it asks its module for once, at the first use.

    The module itself is as before: who tries it finds that there is no such device.
    """
    once = Replacements()
    try:
        if hasattr(module := getattr(torch, absent), "_lazy_init"):
            once.set(module, "_lazy_init", lambda: None)
        torch.empty(0, device=absent)
    finally:
        once.restore()
