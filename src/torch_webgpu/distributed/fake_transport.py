"""Collectives of ``FakeProcessGroup``, whose other ranks are not there: nothing is exchanged."""

from __future__ import annotations

from .timeline import ISSUED, READ, REDUCED
from .torch_c10d import call_backend
from .transport import Exchange, Request


class FakeTransport:
    """Has the group's backend do what it does: it copies this rank's part to where the others' belong, or nothing."""

    def begin(self, request: Request) -> FakeExchange:
        call_backend(request.collective.overload, (*request.tensors, request.group.box, *request.rest))
        return FakeExchange()


class FakeExchange(Exchange):
    """A collective that was complete when it was called."""

    carried_by = "fake"

    def issue(self) -> None:
        self.reached(READ)
        self.reached(ISSUED)

    def is_done(self) -> bool:
        return True

    def finish(self) -> int:
        self.reached(REDUCED)
        return -1
