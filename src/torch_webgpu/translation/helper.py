"""What rewritten expressions call (see :mod:`.rewrite`): comparisons in which two names of a device are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .device_names import Names


class Helper:
    """For programs that run on ``target``. Plain Python without state, so that torch.compile traces through it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.names = Names(target)

    def local(self, device: Any) -> Any:
        """A device, given as text, number or :class:`torch.device`, as it is called here; anything else as it is."""
        if isinstance(device, str):
            return self.names.local(device) or device
        if type(device) is int and self.target == "cpu":
            return torch.device("cpu")
        if isinstance(device, torch.device) and device.type in self.names.foreign:
            return torch.device(self.names.local(str(device)) or self.target)
        return device

    def equal(self, value: Any, name: str) -> Any:
        """``value == name``, by either name of the device."""
        if isinstance(value, str):
            return value in (name, self.names.local(name))
        return value == name

    def within(self, name: str, container: Any) -> bool:
        """``name in container``, by either name."""
        return name in container or self.names.local(name) in container

    def lookup(self, table: Any, name: Any) -> Any:
        """``table[name]``; a dict that lacks this device's name is asked for the one that it stands in for."""
        if isinstance(table, Mapping) and name == self.target and name not in table:
            name = next((other for other in self.names.foreign if other in table), name)
        return table[name]

    def is_device(self, value: Any, flag: str) -> Any:
        """``value.is_cuda``: also of what is on the device that stands in for it."""
        found = getattr(value, flag)
        if found is False:
            device = getattr(value, "device", None)
            return isinstance(device, torch.device) and device.type == self.target
        return found
