"""The connection to one tab: frames go out, replies come in, and nobody waits for a tab that is gone."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR
from time import monotonic
from typing import Any, Protocol

from .messages import ProtocolError, Reply, read_reply, read_text

WINDOW_BYTES = 32 << 20
"""What may be underway, sent and not acknowledged: more would fill the page's memory."""
SILENCE_S = 60.0
"""For how long a tab may say nothing while somebody waits for it. It says that it is there every two seconds."""
REFUSALS = {1002: "what is no WebSocket frame", 1007: "text that is no UTF-8", 1009: "a message that is too long"}
"""Close codes with which ``websockets`` ends connections by itself."""
_LOOK_S = 0.5
_QUIET_S = 3.0


def refusal_of(error: Exception) -> str:
    """Why this side closed a connection, of an error of ``websockets``; empty where the browser, or nobody, did."""
    sent = getattr(error, "sent", None)
    if sent is None or sent.code not in REFUSALS or getattr(error, "rcvd_then_sent", False):
        return ""
    return f"the browser sent {REFUSALS[sent.code]} ({sent.reason})"


class Connection(Protocol):
    """A WebSocket: what is used of ``websockets``."""

    def send(self, message: str | bytes) -> None: ...
    def recv(self, timeout: float | None = None) -> str | bytes: ...
    def close(self, code: int, reason: str) -> None: ...

    socket: Any


class Session:
    """A tab. ``lost(epoch, why)`` is called when a device of it, or with None all of it, is gone.

    ``frames``, ``round_trips`` and ``sent_bytes`` count what went out, and how often somebody waited for a reply.
    """

    def __init__(self, connection: Connection, silence_s: float = SILENCE_S) -> None:
        self._connection = connection
        self._silence_s = silence_s
        self._changed = threading.Condition()
        self._underway: dict[int, int] = {}  # frame → bytes
        self._awaited: dict[int, Reply | None] = {}
        self._told: dict[int, dict[str, Any] | None] = {}  # what came of opening a device, by epoch; None: not yet
        self._sinks: dict[int, tuple[Callable[[str, str], object], Callable[[str], object]]] = {}
        self._wanted: dict[int, int] = {}  # frame → bytes its reply has to have
        self._heard = monotonic()
        self._number = 0
        self._sending_since: float | None = None
        self.closed: str | None = None
        self.counts: Counter[str] = Counter()

    # Out

    def tell(self, **message: Any) -> None:
        """Sends a text message; nothing where the tab is gone."""
        self._send(json.dumps(message))

    def _send(self, message: str | bytes) -> None:
        self._sending_since = monotonic()
        try:
            self._connection.send(message)
        except Exception as error:  # noqa: BLE001 whatever a socket raises, the tab is gone
            self.end(f"the connection to the browser broke ({type(error).__name__})")
        finally:
            self._sending_since = None

    def open(self, epoch: int, features: list[str], limits: dict[str, int]) -> None:
        """Has the tab make a device. RuntimeError where it refuses, or is gone."""
        with self._changed:
            self._told[epoch] = None
        self.tell(type="open", epoch=epoch, features=features, limits=limits)
        with self._changed:
            self._wait(lambda: self._told[epoch] is not None)
            told = self._told.pop(epoch) or {"type": "refused", "message": self.closed}
        if told["type"] != "opened":
            raise RuntimeError(told["message"])

    def attach(self, epoch: int, error: Callable[[str, str], object], lost: Callable[[str], object]) -> None:
        """Who is told the errors of a device, and its loss."""
        with self._changed:
            self._sinks[epoch] = error, lost
            if self.closed is not None:
                lost(self.closed)

    def detach(self, epoch: int) -> None:
        """Nobody is told any more."""
        with self._changed:
            self._sinks.pop(epoch, None)

    def next_number(self) -> int:
        """The number of the next frame, from 1; it goes round where 32 bits end."""
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    def send_frame(self, number: int, frame: bytes, want_bytes: int | None) -> None:
        """Sends a frame when what is underway leaves room for it. ``want_bytes``: somebody will wait for the reply,
        which has so many bytes of data.
        """
        with self._changed:
            self._wait(lambda: not self._underway or sum(self._underway.values()) + len(frame) <= WINDOW_BYTES)
            if self.closed is not None:
                return
            self._underway[number] = len(frame)
            if want_bytes is not None:
                self._awaited[number], self._wanted[number] = None, want_bytes
        self.counts["frames"] += 1
        self.counts["bytes"] += len(frame)
        self._send(frame)

    def reply(self, number: int) -> Reply | None:
        """Waits for the reply to a frame; None where the tab is gone."""
        self.counts["round_trips"] += 1
        with self._changed:
            try:
                self._wait(lambda: self._awaited.get(number) is not None or number not in self._awaited)
                return self._awaited.get(number)
            finally:
                self._awaited.pop(number, None)

    def is_answered(self, number: int) -> bool:
        """Whether the reply to a frame is there, or never will be."""
        return number not in self._underway or self.closed is not None

    def _wait(self, there: Callable[[], bool]) -> None:
        """Until something is there, or the tab is gone. A tab that says nothing for long is taken for gone."""
        begun = monotonic()
        while not there() and self.closed is None:
            if monotonic() - max(self._heard, begun) > self._silence_s:
                self.end(f"the browser has said nothing for {self._silence_s:g} s")
                return
            self._changed.wait(_LOOK_S)

    # In

    def listen(self) -> None:
        """Takes messages until the tab is gone. On a thread of its own."""
        why = "its tab was closed, or left the page. Open the link again; torch.webgpu.reset_device() begins anew there"
        try:
            while self.closed is None:
                try:
                    message = self._connection.recv(timeout=_QUIET_S)
                except TimeoutError:
                    self._look_after_sender()
                else:
                    self.take(message)
        except ProtocolError as error:
            why = f"the browser sent {error}"
            self.end(why)
            self._connection.close(4400, "that is no message of this page")
        except Exception as error:  # noqa: BLE001 websockets' own: the connection is closed
            why = refusal_of(error) or why
        self.end(why)

    def _look_after_sender(self) -> None:
        """Breaks the connection of a tab that takes nothing any more: a send would wait for it for ever."""
        since = self._sending_since
        if since is not None and monotonic() - max(since, self._heard) > self._silence_s:
            self.end(f"the browser has taken nothing for {self._silence_s:g} s")
            with suppress(OSError):
                self._connection.socket.shutdown(SHUT_RDWR)

    def take(self, message: str | bytes) -> None:
        """One message. ProtocolError where it is none."""
        if isinstance(message, str):
            self._take_text(read_text(message))
        else:
            self._take_reply(read_reply(message))

    def _take_text(self, told: dict[str, Any]) -> None:
        with self._changed:
            self._heard = monotonic()
            if told["type"] in ("opened", "refused"):
                if self._told.get(told["epoch"], told) is not None:
                    raise ProtocolError(f"that device {told['epoch']} is {told['type']}, which nobody asks for"[:200])
                self._told[told["epoch"]] = told
            elif told["type"] == "lost" and told["epoch"] in self._sinks:
                self._sinks[told["epoch"]][1](told["message"] or "the browser gave no reason")
            elif told["type"] == "hello":
                raise ProtocolError("a second hello")
            self._changed.notify_all()

    def _take_reply(self, reply: Reply) -> None:
        with self._changed:
            self._heard = monotonic()
            if self._underway.pop(reply.number, None) is None:
                raise ProtocolError(f"a reply to frame {reply.number}, which nobody sent")
            wanted = self._wanted.pop(reply.number, 0)
            if len(reply.data) not in (0, wanted) or (len(reply.data) != wanted and not reply.errors):
                raise ProtocolError(f"{len(reply.data)} bytes where {wanted} were asked for")
            sink = self._sinks.get(reply.epoch)
            if sink is not None:
                for kind, message in reply.errors:
                    sink[0](kind, message)
            if reply.number in self._awaited:
                self._awaited[reply.number] = reply
            self._changed.notify_all()

    def end(self, why: str) -> None:
        """The tab is gone: whoever waits goes on, and its devices are lost."""
        with self._changed:
            if self.closed is None:
                self.closed = why
                for _, lost in self._sinks.values():
                    lost(why)
            self._changed.notify_all()

    def leave(self, why: str) -> None:
        """Ends the connection from this side."""
        self.end(why)
        try:
            self._connection.close(1001, why[:100])
        except Exception:  # noqa: BLE001 it is closed already, or broken
            return
