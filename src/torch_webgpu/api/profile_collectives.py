"""Collectives in a profile: their events, as lines of a table and rows of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import mean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_webgpu.distributed.timeline import Timeline


@dataclass(frozen=True)
class CollectiveEvent:
    """A collective of ``torch.distributed`` on this rank. Times in microseconds since the profile began.

    ``transport``: what carried it, "gloo" or "shared memory". ``in_bytes`` and ``out_bytes``: of the tensors that this
    rank read, and wrote. ``called_us``: the program called it. ``read_us``: the tensors were in the host's memory, or
    the first chunk in shared memory. ``issued_us``: the exchange had begun; through shared memory that is before
    ``read_us``. ``reduced_us``: what all ranks gave was there, and reduced. ``uploaded_us``: the results were in the
    tensors. None for a step that was not done within the profile. ``error``: why it failed, if it did.
    """

    name: str
    group: str
    rank: int
    size: int
    transport: str
    in_bytes: int
    out_bytes: int
    called_us: float
    read_us: float | None
    issued_us: float | None
    reduced_us: float | None
    uploaded_us: float | None
    error: str = ""

    @classmethod
    def of(cls, timeline: Timeline, start_ns: int) -> CollectiveEvent:
        """That of a timeline, in a profile that began then."""
        times = dict(timeline.times_ns)  # other threads go on
        t = timeline
        us: dict[str, Any] = {f"{step}_us": (times[step] - start_ns) / 1e3 if step in times else None for step in STEPS}
        return cls(t.collective, **{name: getattr(t, name) for name in ABOUT}, **us)

    @property
    def size_bytes(self) -> int:
        """The larger of what goes in and what comes out."""
        return max(self.in_bytes, self.out_bytes)

    @property
    def steps(self) -> list[tuple[str, float]]:
        """The steps that were done, and when, in the order of time."""
        times = [(step, getattr(self, f"{step}_us")) for step in STEPS]
        return sorted([(step, us) for step, us in times if us is not None], key=lambda at: at[1])

    @property
    def end_us(self) -> float:
        """When the last step was done that was."""
        return self.steps[-1][1]

    @property
    def stages(self) -> Iterator[tuple[str, float, float]]:
        """Each step, when the one before it was done, and when it was."""
        before_us = self.called_us
        for step, us in self.steps[1:]:
            yield step, before_us, us
            before_us = us


ABOUT = ("group", "rank", "size", "transport", "in_bytes", "out_bytes", "error")
STEPS = tuple(f.name.removesuffix("_us") for f in fields(CollectiveEvent) if f.name.endswith("_us"))


def lanes(events: Iterable[CollectiveEvent]) -> list[list[CollectiveEvent]]:
    """The events of one group in rows, of which none has two at a time."""
    rows: list[list[CollectiveEvent]] = []
    for event in sorted(events, key=lambda event: event.called_us):
        free = [row for row in rows if row[-1].end_us <= event.called_us]
        if free:
            free[0].append(event)
        else:
            rows.append([event])
    return rows


def lanes_by_group(events: Sequence[CollectiveEvent]) -> list[tuple[str, list[CollectiveEvent]]]:
    """The rows of all groups, and the name of each."""
    named = []
    for group in dict.fromkeys(event.group for event in events):
        of_group = [event for event in events if event.group == group]
        first = of_group[0]
        name = f"group {group!r}, rank {first.rank} of {first.size}"
        named += [(name if not n else f"{name}, row {n + 1}", row) for n, row in enumerate(lanes(of_group))]
    return named


def summary(events: Sequence[CollectiveEvent]) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Of each collective and transport: what it is, how many bytes, and microseconds from the call to each step."""
    for key in dict.fromkeys((event.name, event.transport) for event in events):
        alike = [event for event in events if (event.name, event.transport) == key]
        after = {
            step: mean(us - event.called_us for event in alike for name, us in event.steps if name == step)
            for step, _ in alike[0].steps[1:]
        }
        what = f"{len(alike)} {key[0]}{f' through {key[1]}' if key[1] else ''}"
        yield what, sum(event.size_bytes for event in alike), after
