"""The device that the emulations of this process stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

DeviceLike = torch.device | str | int | None


class Here:
    """``type``: the target's name, "" while nothing is installed."""

    def __init__(self) -> None:
        self.type = ""
        self.tensors: Callable[..., torch.Tensor] = torch.Tensor
        """What the user's code calls for ``torch.Tensor(…)``: a class of the device after
        ``set_default_tensor_type``, which is more than ``set_default_device`` asks for."""

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

NAMES = ("cuda", "xpu", "mps", "mtia")
"""The devices whose programs are translated."""


def local_name(device: Any) -> Any:
    """A device argument with the names of foreign devices replaced: "cuda:1" → "webgpu:1"; the rest as it is."""
    if isinstance(device, torch.device):
        return torch.device(local_name(str(device))) if device.type in NAMES else device
    if not isinstance(device, str) or not HERE.type:
        return device
    kind, colon, index = device.partition(":")
    if kind not in NAMES or kind == HERE.type:
        return device
    return "cpu" if HERE.type == "cpu" else f"{HERE.type}{colon}{index}"


@dataclass(frozen=True)
class Around:
    """A replacement that calls what it replaces: ``make`` is given that. Written as a decorator of ``make``."""

    make: Callable[[Any], Any]
