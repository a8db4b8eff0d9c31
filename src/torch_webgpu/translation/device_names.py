"""The names of devices in strings: which belong to a device that is not here, and what they are called here.

>>> Names("webgpu").local("cuda:1")
'webgpu:1'
>>> Names("webgpu").local("torch.cuda.HalfTensor")
'torch.webgpu.HalfTensor'
>>> Names("cpu").local("cuda:1")
'cpu'
>>> Names("webgpu").local("cudnn") is None
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FOREIGN = ("cuda", "xpu", "mps", "mtia")
"""The device types that programs are written for."""


class Names:
    """The strings that name a device which ``target`` (a device type) stands in for."""

    def __init__(self, target: str, written_for: Iterable[str] = FOREIGN) -> None:
        self.target = target
        self.foreign = tuple(name for name in written_for if name != target)
        one_of = "|".join(self.foreign)
        # "cuda", "cuda:1", and what an index is put into: "cuda:", "cuda:%d", "cuda:{}"
        self._device = re.compile(rf"({one_of})(?P<index>:(?:\d+|%[dis]|\{{\w*\}})?)?")
        self._tensor_type = re.compile(rf"torch\.(?:{one_of})\.(?P<type>\w+Tensor)")

    def local(self, text: str) -> str | None:
        """What ``text`` is called on the device that is here; None if it names no device, or one that is here."""
        if match := self._device.fullmatch(text):
            index = match["index"] or ""
            if self.target == "cpu" and "%" in index:
                return "cpu%.0s"  # takes a number and shows nothing of it
            return self.target if self.target == "cpu" and index != ":" else self.target + index
        if match := self._tensor_type.fullmatch(text):
            return f"torch.{match['type']}" if self.target == "cpu" else f"torch.{self.target}.{match['type']}"
        return None

    def local_argument(self, text: str) -> str:
        """A command line's word in which a device is all, or all of a value: ``cuda``, ``--device=cuda:0``."""
        option, equals, value = text.partition("=")
        if not equals:
            return self.local(text) or text
        return f"{option}={self.local(value) or value}"
