"""What a browser sends, checked on this side: whatever it is, it is a message, or it is refused in words."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_webgpu.runtime.browser import commands as c
from torch_webgpu.runtime.browser.adapter import LIMITS, MOST, read_adapter
from torch_webgpu.runtime.browser.device import BrowserDevice
from torch_webgpu.runtime.browser.messages import HEADER, MAX_DATA_BYTES, ProtocolError, read_reply, read_text
from torch_webgpu.runtime.browser.session import WINDOW_BYTES, Session

WELL = {name: 256 if name.startswith("min") else 1 << 30 for name in LIMITS}


def reply(number: int, data: bytes = b"", errors: Any = None, epoch: int = 1) -> bytes:
    text = b"" if errors is None else json.dumps(errors).encode()
    return HEADER.pack(epoch, number, len(text), len(data)) + text + bytes(-len(text) % 4) + data


class Tab:
    """A connection that keeps what is sent, and answers each frame at once if it ``answers``."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.texts: list[str] = []
        self.session: Session | None = None
        self.answers = False
        self.closed_with: int | None = None

    def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self.texts.append(message)
        else:
            self.frames.append(message)
            if self.answers and self.session is not None:
                number = int.from_bytes(message[4:8], "little")
                size = int.from_bytes(message[16:20], "little")
                threading.Thread(target=self.session.take, args=(reply(number, bytes(size)),)).start()

    def recv(self, timeout: float | None = None) -> bytes:
        return b"\1" * 7

    def close(self, code: int, reason: str) -> None:
        self.closed_with = code


def session(answers: bool = True, silence_s: float = 5.0) -> tuple[Session, Tab]:
    tab = Tab()
    tab.session, tab.answers = Session(tab, silence_s), answers
    return tab.session, tab


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_reply_or_refused(message: bytes) -> None:
    try:
        read = read_reply(message)
    except ProtocolError:
        return
    assert len(read.data) <= len(message)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4), st.binary(max_size=64))
def test_sizes_that_a_reply_tells_are_checked(words: list[int], rest: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_reply(HEADER.pack(words[0], words[1], words[2] | 0x10000, words[3] | MAX_DATA_BYTES) + rest)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(json_values, st.sampled_from(["hello", "opened", "refused", "lost", "alive", "other"]))
def test_any_json_is_a_message_or_refused(value: Any, kind: str) -> None:
    for told in (value, {**value, "type": kind} if isinstance(value, dict) else {"type": kind}):
        with contextlib.suppress(ProtocolError):
            assert "type" in read_text(json.dumps(told))


@settings(max_examples=300, deadline=None)
@given(json_values, st.sampled_from([*LIMITS, "features", "limits", "vendor"]))
def test_an_adapter_is_usable_or_refused(value: Any, name: str) -> None:
    told: dict[str, Any] = {"available": True, "features": ["shader-f16", 3, "x"], "limits": dict(WELL)}
    (told["limits"] if name in LIMITS else told)[name] = value
    try:
        facts = read_adapter(told)
    except ProtocolError:
        return
    assert all(1 <= limit <= MOST for limit in facts["limits"].values())


@pytest.mark.parametrize(
    "text", ["[" * 60_000, '{"type": 3}', '{"type": "opened", "epoch": true}', "x" * 70_000, "NaN"]
)
def test_texts_that_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        read_text(text)


def test_a_truncated_reply_ends_the_session_and_is_told() -> None:
    made, tab = session(answers=False)
    device = BrowserDevice(made, 1)
    made.listen()
    assert tab.closed_with == 4400
    assert "a reply of 7 bytes" in str(device.sink.lost)
    assert device.map(1, 4) is None  # and does not wait
    device.close()


@pytest.mark.parametrize("wrong", [reply(9), reply(1, b"12345678"), reply(1, b"")])
def test_replies_that_nobody_asked_for_are_refused(wrong: bytes) -> None:
    made, _ = session(answers=False)
    made.send_frame(1, b"frame", 4)
    with pytest.raises(ProtocolError):
        made.take(wrong)


words = st.integers(0, 40) | st.integers(0, 2**32 - 1)
near_replies = st.builds(
    lambda head, rest: HEADER.pack(*head) + rest, st.tuples(st.sampled_from([1, 2, 9]), words, words, words),
    st.binary(max_size=64),
)  # fmt: skip
near_texts = st.builds(
    lambda kind, epoch, message: json.dumps({"type": kind, "epoch": epoch, "message": message}),
    st.sampled_from(["hello", "opened", "refused", "lost", "alive", "x"]), st.integers(0, 4) | json_values,
    st.text(max_size=30) | json_values,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.binary(max_size=80) | st.text(max_size=80) | near_replies | near_texts, max_size=12))
def test_any_messages_are_taken_or_end_the_session(messages: list[str | bytes]) -> None:
    """Nothing of what a tab sends grows with the number of its messages."""
    made, _ = session(answers=False)
    told: list[str] = []
    made.attach(1, lambda kind, text: told.append(text), told.append)
    for number in (1, 2):
        made.send_frame(number, b"frame", 8 * number)
    with contextlib.suppress(ProtocolError):
        for message in messages:
            made.take(message)
    held = [made._underway, made._awaited, made._told, made._wanted]
    assert sum(map(len, held)) <= 6
    assert all(c.isprintable() or c in "\n\t" for text in told for c in text)


@pytest.mark.parametrize("kind", ["opened", "refused"])
def test_devices_that_nobody_asks_for_are_refused(kind: str) -> None:
    made, tab = session(answers=False)
    with pytest.raises(ProtocolError, match="which nobody asks for"):
        made.take(json.dumps({"type": kind, "epoch": 5, "message": ""}))
    opening = threading.Thread(target=made.open, args=(7, [], {}))
    opening.start()
    while not tab.texts:
        opening.join(0.01)
    made.take('{"type": "opened", "epoch": 7}')
    opening.join(30)
    assert not opening.is_alive()
    with pytest.raises(ProtocolError, match="which nobody asks for"):
        made.take('{"type": "opened", "epoch": 7}')


def test_control_characters_of_a_browser_reach_no_terminal() -> None:
    told = {
        "available": True,
        "features": [],
        "limits": dict(WELL),
        "description": "GPU\x1b[2J\n",
        "browser": "\x1b]0;a",
    }
    facts = read_adapter(told)
    assert facts["name"] == "GPU[2J in ]0;a"
    assert read_text(json.dumps({"type": "lost", "epoch": 1, "message": "\x1b[31mred\n"}))["message"] == "[31mred\n"
    assert read_reply(reply(1, errors=[["internal", "a\x07b\nc"]])).errors == (("internal", "ab\nc"),)


def test_a_silent_tab_is_lost() -> None:
    made, _ = session(answers=False, silence_s=0.1)
    device = BrowserDevice(made, 1)
    begun = monotonic()
    assert device.map(1, 4) is None
    assert "said nothing" in str(device.sink.lost)
    assert monotonic() - begun < 30
    assert device.run(device.create_encoder()) is False
    device.close()


def test_a_tab_that_takes_nothing_is_lost() -> None:
    """Though the operating system would wait for it for ever."""
    ours, theirs = socket.socketpair()

    class Frozen(Tab):
        socket = ours

        def send(self, message: str | bytes) -> None:
            ours.sendall(bytes(1 << 24))

        def recv(self, timeout: float | None = None) -> bytes:
            raise TimeoutError

    made = Session(Frozen(), 0.2)
    device = BrowserDevice(made, 1, idle_s=30.0)
    listening = threading.Thread(target=made.listen)
    sending = threading.Thread(target=device.poll, args=(True,))
    sending.start()
    listening.start()
    sending.join(30)
    listening.join(30)
    assert not sending.is_alive()
    assert "taken nothing" in str(device.sink.lost)
    device.close()
    ours.close()
    theirs.close()


def test_uploads_wait_for_room() -> None:
    """No more is underway than a window holds, and all arrives once the page has answered."""
    made, tab = session(answers=False)
    device = BrowserDevice(made, 1, idle_s=30.0)
    data = bytes(3 * WINDOW_BYTES // 2)
    writer = threading.Thread(target=device.write_buffer, args=(1, 0, data))
    writer.start()
    writer.join(1.0)
    assert writer.is_alive()
    assert sum(map(len, tab.frames)) <= WINDOW_BYTES
    answered = 0
    while writer.is_alive() or answered < len(tab.frames):
        for frame in tab.frames[answered:]:
            answered += 1
            made.take(reply(int.from_bytes(frame[4:8], "little")))
        writer.join(0.01)
    assert sum(map(len, tab.frames)) > len(data)
    device.close()


def test_work_is_one_frame_and_reading_one_round_trip() -> None:
    made, tab = session()
    device = BrowserDevice(made, 1, idle_s=30.0)
    buffer = device.create_buffer(1024, 0)
    for _ in range(10):
        device.write_buffer(buffer, 0, bytes(16))
        encoder = device.create_encoder()
        device.dispatch_workgroups(device.begin_pass(encoder), 1, 2, 3)
        device.end_pass(encoder)
        assert device.run(encoder)
    assert tab.frames == []
    assert device.map(buffer, 64) is not None
    assert (made.counts["frames"], made.counts["round_trips"]) == (1, 1)
    assert tab.frames[0].count(c.words((c.SUBMIT, 6, c.BEGIN_PASS, c.DISPATCH, 1, 2, 3, c.END_PASS))) == 10
    device.close()


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_copy_that_no_browser_takes_is_told_at_once(place: int) -> None:
    """And nothing of its submission runs, as with the other implementations."""
    made, _ = session()
    device = BrowserDevice(made, 1, idle_s=30.0)
    encoder, numbers = device.create_encoder(), [0, 4, 8]
    numbers[place - 1] += 2
    device.copy_buffer(encoder, 1, numbers[0], 2, numbers[1], numbers[2])
    assert not device.run(encoder)
    ((kind, text),) = device.sink.take()
    assert (kind, device.submissions) == ("validation", 0)
    assert "multiples of 4 bytes" in text
    device.close()


def test_numbers_are_free_once_nothing_may_name_them() -> None:
    made, _ = session()
    device = BrowserDevice(made, 1, idle_s=30.0)
    first, second = device.create_buffer(4, 0), device.create_buffer(4, 0)
    encoder = device.create_encoder()
    device.clear_buffer(encoder, first, 0, 4)
    device.release_buffer(first)
    assert device.create_buffer(4, 0) not in (first, second)
    device.run(encoder)
    assert device.create_buffer(4, 0) == first
    device.close()


def test_errors_come_with_the_reply() -> None:
    made, _tab = session(answers=False)
    device = BrowserDevice(made, 1, idle_s=30.0)
    device.create_buffer(4, 0)
    threading.Timer(0.05, lambda: made.take(reply(1, errors=[["out of memory", "no room"]]))).start()
    device.poll(wait=True)
    assert device.sink.take() == [("out of memory", "no room")]
    device.close()
