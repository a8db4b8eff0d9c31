"""A web server for one tab: it serves the page, and makes a session of the tab that has the token."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .adapter import browser_name, read_adapter
from .device import BrowserDevice
from .messages import MAX_MESSAGE_BYTES, ProtocolError, read_text
from .session import SILENCE_S, Session

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import ServerConnection

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # what strangers send is not the program's to print

VERSION = 1
PROTOCOL = f"torch-webgpu.{VERSION}"
"""The subprotocol; the page sends the token as a second one, which unlike a path is written to no log."""
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HELLO_S = 20.0
"""For how long a tab may take to find its GPU."""
WRONG_TOKEN, TAKEN, OTHER_GPU, NO_HELLO = 4401, 4409, 4410, 4400
"""Why a tab is refused, for the page to say in words."""
CLOSE_S = 3.0
"""For how long a good-bye may take."""
MAX_REASON_BYTES = 123
"""Of a close frame (RFC 6455)."""
MAX_WAITING = 8
"""Connections at a time, of which one has the session."""


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine, for itself alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class BrowserServer:
    """Serves ``files`` (path → file) and waits for a tab. Runs on threads of its own until :meth:`close`.

    ``facts``: the GPU of the first tab that joined; only tabs with the same one may take its place. OSError where the
    port is taken, or a certificate cannot be read; ImportError without ``websockets``.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: tuple[str, str | None] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        from websockets.sync.server import serve

        self._files, self.host, self._silence_s = dict(files), host, silence_s
        self.token = secrets.token_urlsafe(24)
        self.facts: dict[str, Any] | None = None
        self.browser = "a browser"
        self.session: Session | None = None
        self._epochs = count(1)
        self._changed = threading.Condition()
        self._waiting = 0
        self.secure = certificate is not None
        context = None
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)
        self._server = serve(
            self._join, host, port, process_request=self._answer, ssl=context, compression=None,
            max_size=MAX_MESSAGE_BYTES, max_queue=4, select_subprotocol=lambda *_: PROTOCOL, server_header=None,
            close_timeout=CLOSE_S, logger=_log,
        )  # fmt: skip
        self.port: int = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, name="webgpu-browser-server", daemon=True).start()

    @property
    def address(self) -> str:
        """``http://127.0.0.1:4321``"""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    @property
    def link(self) -> str:
        """What a browser has to open. Its part behind ``#`` stays in the browser: the page uses it as the password."""
        return f"{self.address}/#token={self.token}"

    # What browsers ask for

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """A file of the page, a refusal, or None: a WebSocket may be opened."""
        path = urlsplit(request.path).path
        if not self._is_own_host(request):
            return self._response(403, "Forbidden", b"This server is asked for by another name than it has.\n")
        if path == "/session":
            if "Upgrade" not in request.headers:
                return self._response(426, "Upgrade Required", b"This is for the page's WebSocket.\n")
            return None if self._is_own_origin(request) else self._response(403, "Forbidden", b"Another site asks.\n")
        file = self._files.get(path)
        if file is None:
            return self._response(404, "Not Found", b"There is no such file.\n")
        return self._response(200, "OK", file.read_bytes(), TYPES.get(file.suffix, "text/plain"))

    def _is_own_host(self, request: Request) -> bool:
        """On loopback, whether this machine was asked by a name of its own: other names lead here through a site's
        forged DNS answers. https://en.wikipedia.org/wiki/DNS_rebinding
        """
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1:
            return False
        return not is_loopback(self.host) or is_loopback(urlsplit(f"//{hosts[0]}").hostname or "")

    def _is_own_origin(self, request: Request) -> bool:
        """Whether a page of this server asks."""
        origins = request.headers.get_all("Origin")
        scheme = "https" if self.secure else "http"
        return len(origins) == 1 and origins[0] == f"{scheme}://{request.headers['Host']}"

    def _response(self, status: int, reason: str, body: bytes, kind: str = "text/plain") -> Response:
        from websockets.datastructures import Headers
        from websockets.http11 import Response

        headers = Headers(HEADERS)
        headers["Content-Type"] = f"{kind}; charset=utf-8"
        headers["Content-Length"] = str(len(body))
        headers["Connection"] = "close"
        return Response(status, reason, headers, body)

    # Tabs

    def _join(self, connection: ServerConnection) -> None:
        """A WebSocket from its opening to its end."""
        with self._changed:
            crowded = self._waiting >= MAX_WAITING
            self._waiting += 1
        try:
            if not self._has_token(connection):
                connection.close(WRONG_TOKEN, "this link is of another program, or of one that has ended")
            elif crowded:
                connection.close(TAKEN, "too many tabs ask")
            else:
                self._welcome(connection)
        finally:
            with self._changed:
                self._waiting -= 1

    def _has_token(self, connection: ServerConnection) -> bool:
        request = connection.request
        told = "" if request is None else ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        offered = [name.strip().encode() for name in told.split(",")]
        # In constant time, and all of them: how long it takes tells nothing of the token.
        return any(hmac.compare_digest(one, self.token.encode()) for one in offered[:4])

    def _welcome(self, connection: ServerConnection) -> None:
        try:
            told = read_text(_text(connection.recv(timeout=HELLO_S)))
            if told["type"] != "hello":
                raise ProtocolError("another message than its hello")
            if told["version"] != VERSION:
                raise ProtocolError(f"version {told['version']} of its page, which is not {VERSION}"[:100])
            facts, browser = read_adapter(told["adapter"]), browser_name(told["adapter"])
        except (ProtocolError, TimeoutError) as error:
            told_wrong = f"the program was told {error}".encode("ascii", "backslashreplace")
            connection.close(NO_HELLO, told_wrong[:MAX_REASON_BYTES].decode())
            return
        session = Session(connection, self._silence_s)
        with self._changed:
            if self.session is not None and self.session.closed is None:
                refusal = TAKEN, "another tab computes for this program already"
            elif self.facts is not None and self.facts != facts:
                refusal = OTHER_GPU, "this program began on another GPU"
            else:
                refusal = None
                self.session, self.facts, self.browser = session, facts, browser
                self._changed.notify_all()
        if refusal is not None:
            connection.close(*refusal)
            return
        session.tell(type="welcome")
        session.listen()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until a tab has joined. TimeoutError."""
        end = None if timeout_s is None else monotonic() + timeout_s
        with self._changed:
            while self.session is None or self.session.closed is not None:
                left = 0.5 if end is None else min(0.5, end - monotonic())
                if left <= 0:
                    raise TimeoutError(f"no browser has opened the link within {timeout_s:g} s")
                self._changed.wait(left)

    def open(self) -> BrowserDevice:
        """A device of the tab that is here now. RuntimeError where there is none."""
        session = self.session
        if session is None or session.closed is not None:
            why = "" if session is None else f": {session.closed}"
            raise RuntimeError(f"no browser computes for this program{why}. Open its link again")
        assert self.facts is not None
        epoch = next(self._epochs)
        session.open(epoch, self.facts["features"], self.facts["limits"])
        return BrowserDevice(session, epoch)

    def close(self) -> None:
        """Says good-bye to the tab, and serves nothing any more."""
        if self.session is not None:
            self.session.leave("the program has ended")
        closing = threading.Thread(target=self._shut_down, name="webgpu-browser-close", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # the interpreter is ending, and starts no threads any more
            self._server.socket.close()
            return
        closing.join(CLOSE_S)

    def _shut_down(self) -> None:
        with suppress(RuntimeError):  # as above: websockets starts threads, too
            self._server.shutdown()


def _text(message: str | bytes) -> str:
    if not isinstance(message, str):
        raise ProtocolError("bytes before its hello")
    return message
