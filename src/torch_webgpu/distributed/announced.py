"""Collectives that gloo carries in a group whose ranks share memory: they take their turn, and the ranks are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from torch_webgpu.engine.sync import pause

from .shared_link import Link, Underway
from .shared_slots import Chunked
from .transport import Exchange, Request


class Announcement:
    """A collective without chunks of its own, as a link runs it. ``perform`` carries it out when its turn comes."""

    def __init__(self, request: Request, perform: Callable[[], None]) -> None:
        self._request, self._perform = request, perform

    is_on_host = False

    def storages(self, role: str) -> Iterable[int]:
        return self._request.storages(role)

    def chunked(self) -> Sequence[Chunked]:
        return ()

    def called(self) -> str:
        """Its name alone: ranks may give tensors of other sizes, or none."""
        return f"{self._request.collective.name.strip('_')} through gloo"

    def read_inputs(self) -> None:
        """What carries it has its own."""

    def reached(self, step: str) -> None:
        """What carries it notes the steps."""

    def end(self) -> None:
        self._perform()


class AnnouncedExchange(Exchange):
    """Another transport's exchange, in the order of a link's. RefusedError where other ranks call something else."""

    is_issued_at_once = True  # it takes its place

    def __init__(self, request: Request, exchange: Exchange, link: Link) -> None:
        self.carried_by, self._exchange, self._link, self._ticket = exchange.carried_by, exchange, link, 0
        self._underway: Underway | None = link.begin(Announcement(request, self._perform))
        self._source = -1
        self._error: Exception | None = None

    def issue(self) -> None:
        self._ticket = self._link.ticket()

    def finish(self) -> int:
        underway, self._underway = self._underway, None  # it has this one
        assert underway is not None
        self._link.run(self._ticket, underway)
        if self._error is not None:
            raise self._error
        return self._source

    def _perform(self) -> None:
        """Exchanges it, all its steps: the next one of the group may have the same tensors."""
        self._exchange.timeline = self.timeline
        begin_s = time.perf_counter()
        try:
            self._exchange.issue()
            while self._exchange.is_done() is False:  # which Ctrl-C ends
                pause(begin_s)
            self._source = self._exchange.finish()
        except Exception as error:  # noqa: BLE001 it is the collective's; the link goes on
            self._error = error
