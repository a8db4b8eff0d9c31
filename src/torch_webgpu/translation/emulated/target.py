"""The device that the emulations of this process stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch

from torch_webgpu.caches import memoized
from torch_webgpu.translation.device_names import Names

DeviceLike = torch.device | str | int | None


class Here:
    """``type``: the target's name, "" while nothing is installed."""

    def __init__(self) -> None:
        self.type = ""
        self.tensors: Callable[..., torch.Tensor] = torch.Tensor
        """What the user's code calls for ``torch.Tensor(…)``: a class of the device after
        ``set_default_tensor_type``, which is more than ``set_default_device`` asks for."""
        self.originals: dict[Any, Any] = {}
        """What is installed → what it replaces, of functions and classes."""

    @property
    def module(self) -> ModuleType:
        """``torch.webgpu``, ``torch.mps`` …"""
        found: ModuleType = getattr(torch, self.type)
        return found

    @property
    def count(self) -> int:
        """How many of them there are."""
        return 1 if self.type == "cpu" else int(self.module.device_count())

    @property
    def current(self) -> int:
        """The index of the one that is current in this thread."""
        return int(self.module.current_device()) if self.type in ("webgpu", "xpu") else 0

    def index(self, device: DeviceLike = None) -> int:
        """The index that a device argument of torch.cuda's functions names."""
        if device is None:
            return self.current
        if not isinstance(device, int):
            named: int | None = torch.device(device).index
            if named is None:
                return self.current
            device = named
        if not 0 <= device < max(self.count, 1):
            raise RuntimeError(f"invalid device ordinal {device}: this machine has {self.count} {self.type} device(s)")
        return device

    def device(self, device: DeviceLike = None) -> torch.device:
        """The device that an argument of torch.cuda's functions names. The CPU has no index."""
        index = self.index(device)
        return torch.device("cpu") if self.type == "cpu" else torch.device(self.type, index)

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.type != "cpu":
            self.module.synchronize()


HERE = Here()

_names_on = cache(Names)


@memoized("translated texts", 256)
def _local_text(target: str, text: str) -> str:
    return _names_on(target).local(text) or text


def local_name(device: Any) -> Any:
    """A device argument with the names of foreign devices replaced: "cuda:1" → "webgpu:1"; the rest as it is."""
    if not HERE.type:
        return device
    if isinstance(device, torch.device):
        local = _names_on(HERE.type).local(str(device))
        return device if local is None else torch.device(local)
    return _local_text(HERE.type, device) if isinstance(device, str) else device


@dataclass(frozen=True)
class Around:
    """A replacement that calls what it replaces: ``make`` is given that. Written as a decorator of ``make``."""

    make: Callable[[Any], Any]
