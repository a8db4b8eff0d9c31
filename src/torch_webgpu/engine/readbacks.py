"""Downloads that nobody waits for: ``pinned.copy_(tensor, non_blocking=True)``.

As with CUDA, the bytes are in the pinned tensor when the host has next waited for the device, or for an event that was
recorded after the copy; until then it holds anything. A wait of any kind finishes all that it knows to be there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from torch_webgpu.runtime.runtime import Device
    from torch_webgpu.runtime.transfer import Readback

MAX_PENDING_BYTES = 256 << 20
"""In staging buffers of one device. Beyond it the oldest downloads are waited for."""


class _Pending(NamedTuple):
    """The parts of a download, and the tensor that must live until they are there."""

    parts: list[Readback]
    target: torch.Tensor
    size_bytes: int


class Readbacks:
    """The downloads of each device that are not finished. Callers hold the engine's lock."""

    def __init__(self) -> None:
        self.waiting: dict[int, deque[_Pending]] = {}
        self._begun: dict[int, int] = {}

    def begun(self, index: int) -> int:
        """How many there have been on a device: a point of its queue, for :meth:`finish`."""
        return self._begun.get(index, 0)

    def make_room(self, device: Device, size_bytes: int) -> None:
        """Before a download of so many bytes begins: waits for old ones while too much is under way."""
        waiting = self.waiting.get(device.index)
        while waiting and sum([download.size_bytes for download in waiting]) + size_bytes > MAX_PENDING_BYTES:
            self._finish_oldest(device, waiting)

    def begin(self, device: Device, parts: list[Readback], target: torch.Tensor) -> None:
        """A download into ``target`` has been submitted."""
        size_bytes = sum([readback.size_bytes for readback in parts])
        self.waiting.setdefault(device.index, deque()).append(_Pending(parts, target, size_bytes))
        self._begun[device.index] = self.begun(device.index) + 1

    def finish(self, device: Device, before: int | None = None) -> None:
        """Waits for those ``begun`` before a point of the device's queue, by default for all."""
        waiting = self.waiting.get(device.index)
        if not waiting:
            return
        last = self.begun(device.index) if before is None else before
        while waiting and self.begun(device.index) - len(waiting) < last:
            self._finish_oldest(device, waiting)

    def forget(self, index: int) -> None:
        """The device was opened anew: what it had not delivered is lost."""
        self.waiting.pop(index, None)

    @staticmethod
    def _finish_oldest(device: Device, waiting: deque[_Pending]) -> None:
        for readback in waiting.popleft().parts:
            device.finish_readback(readback)
