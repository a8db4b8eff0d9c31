"""A web server for tests: folders at paths, byte ranges, and the faults that a page must survive."""

from __future__ import annotations

import http.server
import re
import threading
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


class Site:
    """Serves ``roots`` (path → folder) on a free port of this machine.

    ``ranges``: whether it answers requests for byte ranges. ``max_age_s``: for how long browsers may keep what they
    get. ``truncated``: file name → bytes after which the connection ends. ``missing``: names that are not found.
    ``replaced``: name → other contents. ``requests``: how often each path was asked for; ``ranged``: with a range.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self.roots = dict(roots)
        self.ranges = True
        self.truncated: dict[str, int] = {}
        self.missing: set[str] = set()
        self.max_age_s = 0
        self.replaced: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.ranged: Counter[str] = Counter()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def well(self) -> None:
        """No faults any more, and nothing asked for yet."""
        self.ranges, self.max_age_s = True, 0
        for record in (self.truncated, self.missing, self.replaced, self.requests, self.ranged):
            record.clear()

    def file_at(self, path: str) -> bytes | None:
        for root, folder in self.roots.items():
            if path.startswith(root):
                file = folder / (path.removeprefix(root) or "index.html")
                if file.name in self.missing or not file.resolve().is_relative_to(folder.resolve()):
                    return None
                if file.name in self.replaced:
                    return self.replaced[file.name]
                return file.read_bytes() if file.is_file() else None
        return None

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = unquote(handler.path.partition("?")[0])
        self.requests[path] += 1
        data = self.file_at(path)
        if data is None:
            handler.send_error(HTTPStatus.NOT_FOUND)
            return
        status, asked = HTTPStatus.OK, re.match(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        self.ranged[path] += asked is not None
        if asked and self.ranges:
            status, data = HTTPStatus.PARTIAL_CONTENT, data[int(asked[1]) :]
        handler.send_response(status)
        handler.send_header("Content-Type", TYPES.get(Path(path).suffix, "application/octet-stream"))
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("Content-Security-Policy", POLICY)
        handler.send_header("Cache-Control", f"max-age={self.max_age_s}" if self.max_age_s else "no-store")
        handler.end_headers()
        limit = self.truncated.get(Path(path).name)
        try:
            handler.wfile.write(data if limit is None else data[:limit])
        except OSError:
            return  # the page has left
        if limit is not None:
            handler.close_connection = True
