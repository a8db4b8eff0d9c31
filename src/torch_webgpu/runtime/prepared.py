"""Submissions that come again, kept as they will be encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls import EncoderStep

MAX_COMMANDS = 1 << 17
"""That a device keeps prepared: some 400 bytes of the host's memory each, and half of them if others come."""


class Prepared:
    """Steps to be encoded any number of times, as long as the pipelines and bind groups they name are there.

    ``params``: of each command the parameters, which may be changed in between; None for one that takes none.
    ``uniform``: those among them that are no immediates, as they lie in the uniform buffer.
    ``commands``: how many there are. ``made_for``: what the parameters were made of the last time, for whoever makes
    them.
    """

    __slots__ = ("commands", "made_for", "params", "steps", "uniform")

    def __init__(
        self, steps: list[EncoderStep], params: Sequence[bytearray | memoryview | None], uniform: bytearray
    ) -> None:
        self.steps, self.params, self.uniform, self.commands = steps, params, uniform, len(params)
        self.made_for: Any = None
