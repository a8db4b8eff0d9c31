"""What the engine knows of captures and traces: while one is underway, it takes in what its device would run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device

    from .generators import RandomState
    from .recording import Recording
    from .tensor import Allocation


class Intake(Protocol):
    """A capture or a trace of one device. Callers hold the engine's lock."""

    device: Device

    def run(self, recording: Recording) -> None:
        """Takes in a flush."""

    def write(self, allocation: Allocation, offset_bytes: int, data: memoryview, numel: int) -> bool:
        """Takes in what the host writes; False if it is to be written now."""

    def stream_words(self, state: RandomState, blocks: int) -> Sequence[int]:
        """The four parameters of the stream (seed, offset) for an operation that uses ``blocks`` blocks of it."""

    def may_move(self, allocations: Sequence[Allocation]) -> bool:
        """Whether what starts an allocation now may start later in another one when what is taken in runs."""

    def refuse(self, index: int, what: str) -> None:
        """Raises, if it is on this device: ``what`` cannot be taken in."""
