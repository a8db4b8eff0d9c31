"""Messages of a rank to itself: ``isend`` and ``irecv`` allow them, which gloo cannot. They stay on the device."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain

import torch

from .staging import describe
from .timeline import ISSUED, READ, REDUCED
from .transport import IN, Exchange, Request, flat


class Message:
    """A tensor that is sent, or the one that waits for it, or both."""

    def __init__(self, source: torch.Tensor | None = None, target: torch.Tensor | None = None) -> None:
        self.source, self.target = source, target
        self.error: str | None = None
        self.arrived = threading.Event()

    def deliver(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies what was sent, and lets both tensors go."""
        self.source = self.target = None
        if (source.dtype, source.numel()) == (target.dtype, target.numel()):
            with torch.inference_mode(target.is_inference()):
                target.data.copy_(source.data.reshape(target.shape))
        else:
            self.error = f"this rank sent itself {describe(source)}"
        self.arrived.set()


class SelfTransport:
    """Carries the messages of this rank to itself, each tag's in the order of the calls; nothing else.

    Whoever comes second has the copy recorded. What is sent before it is waited for is copied at once: a sender does
    not wait. ``timeout``: after which a receive gives up.
    """

    def __init__(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()
        self._lock = threading.Lock()
        self._sent: defaultdict[int, deque[Message]] = defaultdict(deque)
        self._awaited: defaultdict[int, deque[Message]] = defaultdict(deque)

    def begin(self, request: Request) -> SelfExchange | None:
        if not request.collective.peer or request.rest[0] != request.group.rank:
            return None
        tag, (t,) = int(request.rest[1]), flat(request.tensors)
        with self._lock:
            if request.role(0) == IN:
                return SelfExchange(self._send(t, tag), None)
            return SelfExchange(self._receive(t, tag), partial(self._arrived, tag))

    def _send(self, t: torch.Tensor, tag: int) -> Message:
        if self._awaited[tag]:
            message = self._awaited[tag].popleft()
            assert message.target is not None
            message.deliver(t, message.target)
        else:
            message = Message(source=t.data.clone())
            self._sent[tag].append(message)
        return message

    def _receive(self, t: torch.Tensor, tag: int) -> Message:
        if self._sent[tag]:
            message = self._sent[tag].popleft()
            assert message.source is not None
            message.deliver(message.source, t)
        else:
            message = Message(target=t)
            self._awaited[tag].append(message)
        return message

    def _arrived(self, tag: int, message: Message) -> None:
        """Waits for what a receive asks for. Raises RuntimeError where it does not come, or does not fit."""
        if not message.arrived.wait(self._timeout_s):
            with self._lock:
                if message in self._awaited[tag]:
                    self._awaited[tag].remove(message)
                    message.error = f"timed out after {self._timeout_s:g} seconds: this rank has sent itself nothing"
        if message.error is not None:
            raise RuntimeError(message.error)

    def abort(self) -> None:
        """Has receives that wait end with an error."""
        with self._lock:
            for message in chain.from_iterable(self._awaited.values()):
                message.error = "the process group was aborted"
                message.arrived.set()
            self._awaited.clear()


class SelfExchange(Exchange):
    """A message underway. ``wait``: waits for it; None for a sender, who does not."""

    carried_by = "copies"

    def __init__(self, message: Message, wait: Callable[[Message], None] | None) -> None:
        self._message, self._wait = message, wait

    def issue(self) -> None:
        self.reached(READ)
        self.reached(ISSUED)

    def is_done(self) -> bool:
        return self._wait is None or self._message.arrived.is_set()

    def finish(self) -> int:
        if self._wait is not None:
            self._wait(self._message)
        self.reached(REDUCED)
        return -1
