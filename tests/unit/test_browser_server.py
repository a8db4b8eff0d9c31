"""The server of a browser's device, asked by a program in the place of a browser: over a real WebSocket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_webgpu.runtime.browser.device import BrowserDevice
from torch_webgpu.runtime.browser.messages import HEADER, MAX_MESSAGE_BYTES
from torch_webgpu.runtime.browser.server import BrowserServer

from .test_browser_messages import WELL

client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed: torch-webgpu[serve]")
from websockets.exceptions import ConnectionClosed  # noqa: E402 which is there now

HELLO = {
    "type": "hello", "version": 1,
    "adapter": {"available": True, "vendor": "v", "features": [], "limits": WELL, "browser": "Test 1"},
}  # fmt: skip
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[BrowserServer]:
    made = BrowserServer({})
    yield made
    made.close()


class Page:
    """A tab that has joined, and whose device the program has."""

    def __init__(self, server: BrowserServer) -> None:
        self.connection = client.connect(
            server.address.replace("http", "ws") + "/session", origin=server.address,
            subprotocols=["torch-webgpu.1", server.token], max_size=None,
        )  # fmt: skip
        self.say(HELLO)
        assert self.hear()["type"] == "welcome"
        made: list[BrowserDevice] = []
        opening = threading.Thread(target=lambda: made.append(server.open()))
        opening.start()
        self.say({"type": "opened", "epoch": self.hear()["epoch"]})
        opening.join(PATIENCE_S)
        self.device = made[0]

    def say(self, message: dict[str, Any]) -> None:
        self.connection.send(json.dumps(message))

    def hear(self) -> dict[str, Any]:
        told = self.connection.recv(timeout=PATIENCE_S)
        assert isinstance(told, str)
        return json.loads(told)

    def why_lost(self, *messages: str | bytes) -> str:
        """Sends these in the place of a reply that the program waits for; why it gave up the device."""
        found: list[memoryview | None] = []
        reading = threading.Thread(target=lambda: found.append(self.device.map(1, 8)))
        reading.start()
        assert isinstance(self.connection.recv(timeout=PATIENCE_S), bytes)
        try:
            for message in messages:
                self.connection.send(message)
        except ConnectionClosed:
            pass  # the server has had enough
        reading.join(PATIENCE_S)
        self.connection.close()
        assert not reading.is_alive()
        assert found == [None]
        self.device.close()
        return str(self.device.sink.lost)


words = st.integers(0, 20) | st.integers(0, 2**32 - 1)
hostile = st.lists(
    st.binary(min_size=1, max_size=100) | st.builds(HEADER.pack, words, words, words, words.filter(lambda n: n != 8)),
    min_size=1, max_size=4,
)  # fmt: skip


def test_hostile_replies_lose_the_device_and_the_server_goes_on(server: BrowserServer) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(hostile)
    def lost(messages: list[bytes]) -> None:
        assert "the browser sent" in Page(server).why_lost(*messages)

    lost()
    page = Page(server)
    answer = threading.Thread(target=page.connection.send, args=(HEADER.pack(page.device.epoch, 1, 0, 8) + bytes(8),))
    answer.daemon = True
    reading: list[Any] = []
    reader = threading.Thread(target=lambda: reading.append(page.device.map(1, 8)))
    reader.start()
    page.connection.recv(timeout=PATIENCE_S)
    answer.start()
    reader.join(PATIENCE_S)
    assert bytes(reading[0]) == bytes(8)
    page.connection.close()
    page.device.close()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (bytes(MAX_MESSAGE_BYTES + 1), "a message that is too long"),
        ("x" * 70_000, "a text message of 70000 characters"),
        (json.dumps({"type": "opened", "epoch": 3_000_000}), "which nobody asks for"),
        (json.dumps(HELLO), "a second hello"),
        ("[" * 60_000, "text that is no JSON"),
    ],
)
def test_what_is_wrong_is_said(server: BrowserServer, message: str | bytes, why: str) -> None:
    assert why in Page(server).why_lost(message)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2 of its page"),
        ({"adapter": {**HELLO["adapter"], "browser": 3}}, "no text"),
        (
            {"adapter": {**HELLO["adapter"], "limits": {**WELL, "maxBufferSize": "é" * 200}}},
            "maxBufferSize",
        ),
        ({"type": "alive"}, "another message than its hello"),
    ],
)
def test_a_hello_that_is_none(server: BrowserServer, change: dict[str, Any], why: str) -> None:
    url = server.address.replace("http", "ws") + "/session"
    with client.connect(url, origin=server.address, subprotocols=["torch-webgpu.1", server.token]) as connection:
        connection.send(json.dumps(HELLO | change))
        with pytest.raises(ConnectionClosed) as told:
            connection.recv(timeout=PATIENCE_S)
    assert told.value.rcvd.code == 4400
    assert why in told.value.rcvd.reason
