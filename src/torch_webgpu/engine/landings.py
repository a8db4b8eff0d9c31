"""Downloads that nobody waits for: ``pinned.copy_(tensor, non_blocking=True)``.

As with CUDA, the bytes are in the pinned tensor when the host has next waited for the device, or for an event that was
recorded after the copy; until then it holds anything. A wait of any kind lands all that it knows to be there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from torch_webgpu.runtime.runtime import Device
    from torch_webgpu.runtime.transfer import Flight

MAX_WAITING_BYTES = 256 << 20
"""In staging buffers of one device. Beyond it the oldest downloads are waited for."""


class _Landing(NamedTuple):
    """The parts of a download, and the tensor that must live until they have landed."""

    flights: list[Flight]
    target: torch.Tensor
    size_bytes: int


class Landings:
    """The downloads of each device that have not landed. Callers hold the engine's lock."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Landing]] = {}
        self._begun: dict[int, int] = {}

    def begun(self, index: int) -> int:
        """How many there have been on a device: a place in its queue, for :meth:`land`."""
        return self._begun.get(index, 0)

    def make_room(self, device: Device, size_bytes: int) -> None:
        """Before a download of so many bytes begins: waits for old ones while too much is under way."""
        waiting = self._waiting.get(device.index)
        while waiting and sum([landing.size_bytes for landing in waiting]) + size_bytes > MAX_WAITING_BYTES:
            self._land_oldest(device, waiting)

    def begin(self, device: Device, flights: list[Flight], target: torch.Tensor) -> None:
        """A download into ``target`` has been submitted."""
        size_bytes = sum([flight.read.size_bytes for flight in flights])
        self._waiting.setdefault(device.index, deque()).append(_Landing(flights, target, size_bytes))
        self._begun[device.index] = self.begun(device.index) + 1

    def land(self, device: Device, place: int | None = None) -> None:
        """Waits for those begun before a ``place`` in the device's queue, by default for all."""
        waiting = self._waiting.get(device.index)
        last = self.begun(device.index) if place is None else place
        while waiting and self.begun(device.index) - len(waiting) < last:
            self._land_oldest(device, waiting)

    def forget(self, index: int) -> None:
        """The device was opened anew: what it had not delivered is lost."""
        self._waiting.pop(index, None)

    @staticmethod
    def _land_oldest(device: Device, waiting: deque[_Landing]) -> None:
        for flight in waiting.popleft().flights:
            device.land(flight)
