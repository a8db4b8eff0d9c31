"""What carries collectives among the ranks of a group: the seam between ``c10d``'s operators and where bytes travel.

A :class:`Transport` is given a collective's tensors as they are, on the device. It decides itself what goes through the
host's memory. The sequence asks each :class:`Exchange` to be issued in the order of the calls, and finished in any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .timeline import Timeline
from .torch_c10d import operator

IN, OUT, BOTH, NOTHING = "in", "out", "both", "nothing"


@dataclass(frozen=True)
class Collective:
    """An operator of ``c10d``.

    ``roles``: what becomes of the tensors in its first arguments. ``reduces``: it computes with them. ``root``: the
    argument after the group that names the rank which alone reads, or writes (``root_is``: which role it has alone).
    ``returns_tensors``: it returns its first argument beside the work. ``is_flat``: only the number of elements
    matters, and gloo is given one dimension, where it would compare others. ``peer``: "to" or "from", where the first
    argument after the group is the other rank of a message. ``is_stacked``: its future has one tensor of all results.
    """

    name: str
    called: str
    roles: tuple[str, ...]
    reduces: bool = False
    returns_tensors: bool = False
    root: int | None = None
    root_is: str = ""
    has_source: bool = False
    is_flat: bool = False
    peer: str = ""
    is_stacked: bool = False

    @property
    def overload(self) -> Any:
        """The operator."""
        return operator(self.name)

    @property
    def is_of_two(self) -> bool:
        """Whether it is a message of one rank to another."""
        return bool(self.peer) or self.has_source


class Group(Protocol):
    """The ranks among which a collective is called. ``box``: what gloo's operators take as their group."""

    name: str
    rank: int
    size: int
    box: Any


@dataclass(frozen=True)
class Request:
    """A collective that this rank has called.

    ``tensors``: the operator's first arguments, one for each of the collective's roles: tensors of webgpu in lists of
    lists. ``rest``: those after the group, boxes of ``c10d`` among them.
    """

    collective: Collective
    tensors: Sequence[Any]
    group: Group
    rest: Sequence[Any]

    def role(self, position: int) -> str:
        """What becomes of the tensors at a position on this rank."""
        role, root = self.collective.roles[position], self.collective.root
        if root is None:
            return role
        is_root = self.rest[root] == self.group.rank
        if self.collective.root_is == IN:  # broadcast: the root's tensor goes out, the others' come in
            return IN if is_root else OUT
        return BOTH if is_root else IN  # reduce: only the root's is written

    def storages(self, role: str) -> Iterator[int]:
        """The addresses of those that this rank reads (IN), or writes (OUT)."""
        for k, value in enumerate(self.tensors):
            if self.role(k) in (role, BOTH):
                for t in flat(value):
                    yield t.untyped_storage().data_ptr()


class Exchange(ABC):
    """One collective underway in a transport. ``carried_by``: which one, in words."""

    carried_by: str
    is_issued_at_once = False
    """Whether :meth:`issue` never waits."""
    timeline: Timeline | None = None
    """Where the times of its steps are noted; None if nobody looks."""

    def reached(self, step: str) -> None:
        """A step was done just now."""
        if self.timeline is not None:
            self.timeline.mark(step)

    @abstractmethod
    def issue(self) -> None:
        """Waits for the inputs, and begins to exchange. One at a time, in the order of the calls, in any thread."""

    def is_done(self) -> bool | None:
        """Whether :meth:`finish` would not wait for other ranks; None where that cannot be told."""
        return None

    @abstractmethod
    def finish(self) -> int:
        """Waits until the results are in the tensors, as far as what is recorded later sees them; any thread may.

        The rank that a message of any source came from; -1 else. Raises what went wrong.
        """


class Transport(Protocol):
    """Carries collectives of a group."""

    def begin(self, request: Request) -> Exchange | None:
        """A collective that was just called, in the thread that called it. None if it does not carry this one, on every
        rank alike; the next transport is asked then. Its inputs may be read until it is finished.
        """


def structured(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``function`` of a tensor, or of each in lists of lists."""
    return [structured(function, v) for v in value] if isinstance(value, (list, tuple)) else function(value)


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists of lists."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from flat(v)
    else:
        yield value
