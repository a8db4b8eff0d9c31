"""Firefox for tests, driven by WebDriver BiDi, which needs no program besides the browser: a page as playwright's.

``WEB_BROWSER=firefox pytest tests/web`` runs in it what needs no more of a page than this offers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .chromium import PATIENCE_MS

PATIENCE_S = PATIENCE_MS / 1000
NAMES = ("firefox", "firefox-esr")
PREFERENCES = {
    "dom.webgpu.enabled": True, "gfx.webgpu.ignore-blocklist": True, "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False, "toolkit.telemetry.enabled": False,
    "app.update.enabled": False,
    "browser.startup.homepage_override.mstone": "ignore", "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False, "services.settings.server": "data:,",
}  # fmt: skip
EVALUATE = """async text => {
  const value = (%s), result = await (typeof value === 'function' ? value(JSON.parse(text)) : value);
  return JSON.stringify(result ?? null);
}"""


def wanted() -> bool:
    """Whether tests are to run in Firefox."""
    return os.environ.get("WEB_BROWSER") == "firefox"


def executable() -> str | None:
    """The browser: the program that FIREFOX names, or one of the usual names."""
    return os.environ.get("FIREFOX") or next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str:
    """Why there can be no Firefox here; empty if there can."""
    try:
        import websockets.sync.client  # noqa: F401
    except ImportError:
        return "websockets is not installed"
    return "" if executable() else "there is no Firefox: make web-setup"


class Firefox:
    """A running browser. Its tabs share one session of commands."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._ids = count(1)
        self._tabs: dict[str, Page] = {}
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=["log.entryAdded"])

    def command(self, method: str, **params: Any) -> Any:
        """What the browser answers; meanwhile tabs are told of their messages."""
        command = next(self._ids)
        self._socket.send(json.dumps({"id": command, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(PATIENCE_S))
            if answer.get("id") == command:
                assert answer["type"] == "success", f"{method}: {answer.get('message')}"
                return answer["result"]
            if answer.get("method") == "log.entryAdded":
                entry = answer["params"]
                if tab := self._tabs.get(entry["source"].get("context")):
                    tab.told("pageerror" if entry["type"] == "javascript" else "console", entry)

    @contextmanager
    def new_tab(self) -> Iterator[Page]:
        context = self.command("browsingContext.create", type="tab")["context"]
        self._tabs[context] = page = Page(self, context)
        yield page
        del self._tabs[context]
        self.command("browsingContext.close", context=context)


class Message(NamedTuple):
    """What a page wrote to its console."""

    type: str
    text: str

    def __str__(self) -> str:
        return self.text


class Page:
    """A tab: of playwright's page what most tests use. Whatever else they ask of it skips them."""

    def __init__(self, browser: Firefox, context: str) -> None:
        self.command = browser.command
        self._context = context
        self._listeners: dict[str, list[Callable[[Message], None]]] = {}

    def on(self, event: str, listener: Callable[[Message], None]) -> None:
        """Listens to "console" or "pageerror"."""
        if event not in ("console", "pageerror"):
            pytest.skip(f"Firefox tells of no {event}")
        self._listeners.setdefault(event, []).append(listener)

    def told(self, event: str, entry: Any) -> None:
        message = Message({"warn": "warning"}.get(entry["level"], entry["level"]), entry["text"] or "")
        for listener in self._listeners.get(event, []):
            listener(message)

    def goto(self, url: str) -> None:
        self.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def evaluate(self, text: str, argument: Any = None) -> Any:
        """What a function makes of the argument, or an expression is: as JSON."""
        answer = self.command(
            "script.callFunction", functionDeclaration=EVALUATE % text, awaitPromise=True,
            arguments=[{"type": "string", "value": json.dumps(argument)}], target={"context": self._context},
        )  # fmt: skip
        assert answer["type"] == "success", answer["exceptionDetails"]["text"]
        return json.loads(answer["result"]["value"])

    def reload(self) -> None:
        self.command("browsingContext.reload", context=self._context, wait="complete")

    def is_visible(self, selector: str) -> bool:
        return self.evaluate("s => document.querySelector(s)?.checkVisibility() ?? false", selector)

    def wait_for_selector(self, selector: str, state: str = "visible") -> None:
        del state  # what tests wait for is shown where it is there
        end = time.monotonic() + PATIENCE_S
        while not self.evaluate("s => document.querySelector(s) !== null", selector):
            assert time.monotonic() < end, f"no {selector}"
            time.sleep(0.05)

    def inner_text(self, selector: str) -> str:
        return self.evaluate("s => document.querySelector(s).innerText", selector)

    def get_attribute(self, selector: str, name: str) -> str | None:
        return self.evaluate("([s, name]) => document.querySelector(s).getAttribute(name)", [selector, name])

    def fill(self, selector: str, text: str) -> None:
        self.evaluate("([s, text]) => { document.querySelector(s).value = text; }", [selector, text])

    def click(self, selector: str) -> None:
        if selector.startswith("text="):
            pytest.skip("Firefox is not driven by texts")
        self.evaluate("s => document.querySelector(s).click()", selector)

    def set_viewport_size(self, size: dict[str, int]) -> None:
        self.command("browsingContext.setViewport", context=self._context, viewport=size)

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"Firefox is driven without {name}, which playwright has")


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """A Firefox of its own, with a new profile in an empty folder."""
    from websockets.sync.client import connect

    lines = [f"user_pref({json.dumps(key)}, {json.dumps(value)});\n" for key, value in PREFERENCES.items()]
    (profile / "user.js").write_text("".join(lines))
    options = ["--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    environment = {**os.environ, "HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"}
    with subprocess.Popen(
        [str(executable()), *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            said = ""
            while not (found := re.search(r"WebDriver BiDi listening on (ws://\S+)", said)):
                said += (line := process.stdout.readline())
                assert line, f"Firefox ended:\n{said}"
            threading.Thread(target=process.stdout.read, daemon=True).start()
            with connect(f"{found[1]}/session", max_size=None, ping_interval=None) as socket:
                browser = Firefox(socket)
                yield browser
                with suppress(Exception):
                    browser.command("browser.close")
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
