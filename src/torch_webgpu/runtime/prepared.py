"""Submissions that come again, kept as they will be encoded."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_webgpu.runtime.calls import EncoderStep

MAX_COMMANDS = 1 << 16
"""That a device keeps prepared: some 400 bytes of the host's memory each."""
EVICTED_PART = 16
"""What part of them makes room when there are too many."""


class Prepared:
    """Steps to be encoded any number of times, as long as the pipelines and bind groups they name are there.

    ``params``: of each command the parameters, which may be changed in between; None for one that takes none.
    ``uniform``: those among them that are no immediates, as they lie in the uniform buffer.
    ``made_for``: what the parameters were made of the last time, for whoever makes them.
    """

    __slots__ = ("last_use", "made_for", "params", "steps", "uniform")

    def __init__(
        self, steps: list[EncoderStep], params: Sequence[bytearray | memoryview | None], uniform: bytearray
    ) -> None:
        self.steps, self.params, self.uniform = steps, params, uniform
        self.made_for: Any = None
        self.last_use = 0  # on the clock of what keeps it


class PreparedCache:
    """What a device has prepared, by whatever its callers tell submissions apart by; the most recently used stay.

    Nothing stays that names a pipeline or a bind group which is gone: whoever releases one calls :meth:`clear`.
    """

    def __init__(self, max_commands: int = MAX_COMMANDS) -> None:
        self._kept: dict[Hashable, Prepared] = {}
        self._clock = 0  # counts uses: an order kept up to date would hash a key once more at each
        self._commands = 0
        self._max_commands = max_commands

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Prepared | None:
        """What was kept."""
        found = self._kept.get(key)
        if found is not None:
            self._clock = found.last_use = self._clock + 1
        return found

    def keep(self, key: Hashable, prepared: Prepared) -> None:
        """Keeps it, in place of what was there."""
        old = self._kept.pop(key, None)
        self._commands += len(prepared.params) - (len(old.params) if old is not None else 0)
        self._kept[key] = prepared
        self._clock = prepared.last_use = self._clock + 1
        if self._commands > self._max_commands:
            self._evict(self._max_commands - self._max_commands // EVICTED_PART)

    def _evict(self, most: int) -> None:
        """Drops those that have not been used for the longest time, until there are no more commands than ``most``."""
        for key in sorted(self._kept, key=lambda key: self._kept[key].last_use):
            self._commands -= len(self._kept.pop(key).params)
            if self._commands <= most:
                break

    def clear(self) -> None:
        """Forgets everything, and with it the buffers that it names."""
        self._kept.clear()
        self._commands = 0
