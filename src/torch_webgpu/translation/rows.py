"""The compatibility matrix as data: what a row says, and the few words that rows are written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .monitor import Answer

TARGETS = ("webgpu", "mps", "xpu", "cpu")
"""The devices that can take another's place."""


class Reply(NamedTuple):
    """How a name is answered on one target.

    ``by`` names what answers: "torch.webgpu.seed", or ``module:name`` of :mod:`.emulated`; "" for an error, for a no-op
    that returns None, and for PyTorch's own. ``note``: what differs; why nothing is done; what to do instead.
    """

    answer: Answer
    by: str = ""
    note: str = ""


class Row(NamedTuple):
    """A name and its replies.

    ``asks``: the truth depends on whose code asks (:mod:`.availability`). ``removed``: newer versions of PyTorch have
    no such name; where there is one, it is PyTorch's own. ``local``: the first argument is a device type, and calls
    that give the target's own are PyTorch's; they are not counted. It makes many of them itself, at every autocast.
    """

    name: str
    replies: Mapping[str, Reply]
    asks: bool = False
    removed: bool = False
    local: bool = False

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]


SAME = Reply(Answer.SAME)


def same(note: str) -> Reply:
    """PyTorch's own, with something to know about it."""
    return Reply(Answer.SAME, note=note)


def translated(by: str, note: str = "") -> Reply:
    """Another function of PyTorch's or of the device's, or the same one with a device's name replaced.

    ``{target}`` and ``{leaf}`` stand for what differs by row.
    """
    return Reply(Answer.TRANSLATED, by, note)


def emulated(by: str, note: str = "") -> Reply:
    """A function or class of :mod:`.emulated`."""
    return Reply(Answer.EMULATED, by, note)


def nothing(note: str, by: str = "") -> Reply:
    """Nothing to be done, for the reason that ``note`` gives."""
    return Reply(Answer.NOTHING, by, note)


def error(note: str) -> Reply:
    """Cannot be had; ``note`` says why and what to do instead."""
    return Reply(Answer.ERROR, note=note)


OWN = translated("torch.{target}.{leaf}")
"""The function of that name that the target has."""


def rows(prefix: str, names: str, reply: Reply | None = None, **by_target: Reply) -> Iterator[Row]:
    """A row for each of ``names`` (apart by spaces), answered with ``reply`` on the targets that ``by_target`` lacks.

    "host" in it stands for both targets that have no streams of their own, "mps" and "cpu".
    """
    if "host" in by_target:
        host = by_target.pop("host")
        by_target = {"mps": host, "cpu": host} | by_target
    for leaf in names.split():
        chosen = {}
        for target in TARGETS:
            found = by_target.get(target, reply)
            assert found is not None, f"{prefix}.{leaf} has no answer on {target}"
            by = found.by
            chosen[target] = found._replace(by=by.format(target=target, leaf=leaf)) if "{" in by else found
        yield Row(f"{prefix}.{leaf}", chosen)


def questions(prefix: str, names: str, reply: Reply | None = None, **by_target: Reply) -> Iterator[Row]:
    """Rows whose truth depends on who asks."""
    for row in rows(prefix, names, reply, **by_target):
        yield row._replace(asks=True)


def by_device_type(prefix: str, names: str, reply: Reply) -> Iterator[Row]:
    """Rows of functions whose first argument is a device type."""
    for row in rows(prefix, names, reply):
        yield row._replace(local=True)


def removed(prefix: str, leaf: str, note: str) -> Iterator[Row]:
    """The row of a name that PyTorch has removed; ``note``: what to use instead."""
    for row in rows(prefix, leaf, error(f"PyTorch has removed it: {note}")):
        yield row._replace(removed=True)


def native(source: str, made: Iterator[Row]) -> Iterator[Row]:
    """Rows of the device ``source``, which needs no translation where it is itself the target."""
    for row in made:
        yield row._replace(replies={**row.replies, source: SAME})
