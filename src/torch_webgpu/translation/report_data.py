"""What is known about a translation at its end."""

from __future__ import annotations

from dataclasses import dataclass

from .monitor import Answer


@dataclass(frozen=True)
class Call:
    """A name that the program called. ``seconds``: in all its calls, with what they did; ``place``: the first's."""

    name: str
    answer: str
    count: int
    seconds: float
    place: str
    note: str


@dataclass(frozen=True)
class Figures:
    """One session, as of now. Times in seconds, sizes in bytes.

    ``fallbacks``: operator → how often it ran on the CPU for want of a kernel. ``libraries``: packages that asked for
    CUDA and were told the truth → how often. ``peak_bytes``: the most device memory that tensors had; None where the
    device does not tell.
    """

    device: str
    adapter: str
    seconds: float
    seconds_to_enable: float
    seconds_rewriting: float
    files: tuple[str, ...]
    packages: tuple[str, ...]
    calls: tuple[Call, ...]
    libraries: dict[str, int]
    fallbacks: dict[str, int]
    peak_bytes: int | None

    def counts(self) -> dict[str, tuple[int, int]]:
        """Class of answer → how many names, how many calls."""
        found = {answer.value: [call.count for call in self.calls if call.answer == answer] for answer in Answer}
        return {answer: (len(counts), sum(counts)) for answer, counts in found.items() if counts}


def how_many(names: int, calls: int) -> str:
    """In words."""
    return f"{names} name{'s' * (names != 1)}, {calls} call{'s' * (calls != 1)}"
