"""Submissions that come again, kept as they will be encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls import EncoderStep

MAX_COMMANDS = 1 << 17
"""That a device keeps prepared: some 400 bytes of the host's memory each, and half of them if others come."""
PARTS = (32, 64)
"""Dispatches of the first submissions to a GPU that has nothing to do: it begins while the host encodes the next."""


class Prepared:
    """Steps to be encoded any number of times, as long as the pipelines and bind groups they name are there.

    ``params``: of each command the parameters, which may be changed in between; None for one that takes none.
    ``uniform``: those among them that are no immediates, as they lie in the uniform buffer.
    ``commands``: how many there are. ``made_for``: what the parameters were made of the last time, for whoever makes
    them. ``parts``: the same steps, which are several submissions where the GPU would wait for one of all.
    """

    __slots__ = ("commands", "made_for", "params", "parts", "steps", "uniform")

    def __init__(
        self, steps: list[EncoderStep], params: Sequence[bytearray | memoryview | None], uniform: bytearray
    ) -> None:
        self.steps, self.params, self.uniform, self.commands = steps, params, uniform, len(params)
        self.made_for: Any = None
        self.parts = parted(steps, PARTS)


def parted(steps: list[EncoderStep], sizes: Sequence[int]) -> list[list[EncoderStep]]:
    """Steps in order as lists of so many dispatches, the last of which has the rest, and no fewer than the one before
    it.
    """
    parts, rest = [], steps
    for size in sizes:
        if sum(len(step) for step in rest if isinstance(step, list)) < 2 * size:
            break
        first, rest = divided(rest, size)
        parts.append(first)
    return [*parts, rest]


def divided(steps: list[EncoderStep], count: int) -> tuple[list[EncoderStep], list[EncoderStep]]:
    """The steps up to the dispatch of that number, and the rest; a compute pass that goes on sets its pipeline anew."""
    for k, step in enumerate(steps):
        if not isinstance(step, list):
            continue
        if len(step) > count:
            pipeline = next(call[0] for call in reversed(step[: count + 1]) if call[0] is not None)
            going_on = [(pipeline, *step[count][1:]), *step[count + 1 :]]
            return [*steps[:k], step[:count]], [going_on, *steps[k + 1 :]]
        count -= len(step)
        if not count:
            return steps[: k + 1], steps[k + 1 :]
    return steps, []
