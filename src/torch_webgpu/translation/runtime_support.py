"""What rewritten expressions call (see :mod:`.rewrite`): comparisons in which two names of a device are one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_webgpu.translation.emulated.target import HERE

from .callers import MARK
from .device_names import Names
from .rewrite import mentions_devices, rewritten


def is_text(source: Any) -> bool:
    """Whether it is source code that mentions a device."""
    if isinstance(source, str):
        source = source.encode("utf-8", "surrogatepass")
    return isinstance(source, bytes | bytearray) and mentions_devices(bytes(source))


class Helper:
    """For programs that run on ``target``. Plain Python, so that torch.compile traces through it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.names = Names(target)

    def hear(self, source: bytes | str) -> None:
        """Before a module of the user's is translated: from the first that mentions CUDA on, the program is for CUDA.

        One device has one name. Other names then mean other devices: on CUDA, ``device.type != "mps"`` is true.
        """
        mentions_cuda = b"cuda" in source if isinstance(source, bytes) else "cuda" in source
        if mentions_cuda and self.target != "cuda":
            self.names = Names(self.target, ("cuda",))

    @property
    def is_for_cuda(self) -> bool:
        """Whether the program is known to be written for CUDA, and not for another device."""
        return self.names.foreign == ("cuda",)

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
        return table[self.key(table, name)]

    def get(self, table: Any, name: Any, *default: Any) -> Any:
        """``table.get(name, default)``, likewise."""
        return table.get(self.key(table, name), *default)

    def key(self, table: Any, name: Any) -> Any:
        """What a dict calls this device."""
        if isinstance(name, str) and name.startswith(self.target) and isinstance(table, Mapping) and name not in table:
            index = name.removeprefix(self.target)
            return next((other + index for other in self.names.foreign if other + index in table), name)
        return name

    def tensor(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``torch.Tensor(…)``: of the default tensor type. ``make`` may have become something else."""
        return (HERE.tensors if make is torch.Tensor else make)(*args, **kwargs)

    def pinned(self, make: Callable[..., Any], *args: Any, pin_memory: Any = False, **kwargs: Any) -> Any:
        """``torch.empty(2, pin_memory=True)``: the same, pinned afterwards."""
        made = make(*args, **kwargs)
        return made.pin_memory() if pin_memory and made.device.type == "cpu" else made

    def code(self, source: Any) -> Any:
        """What ``exec(source)`` is to run: a text, such as a file of settings, rewritten as a module is."""
        return compile(rewritten(source, "<string>", self.names), "<string>", "exec") if is_text(source) else source

    def expression(self, source: Any) -> Any:
        """What ``eval(source)`` is to run."""
        if not is_text(source):
            return source
        text = source if isinstance(source, str) else bytes(source).decode()
        return compile(rewritten(text.lstrip(" \t"), "<string>", self.names, "eval"), "<string>", "eval")

    def marked(self, names: Any) -> Any:
        """The globals that translated code runs in."""
        if isinstance(names, dict):
            names[MARK] = self
        return names

    def is_device(self, value: Any, flag: str, *default: Any) -> Any:
        """``value.is_cuda``: also of what is on the device that stands in for it."""
        flagged = getattr(value, flag, *default)
        if flagged is False:
            device = getattr(value, "device", None)
            return isinstance(device, torch.device) and device.type == self.target
        return flagged
