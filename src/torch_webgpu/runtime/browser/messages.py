"""What a browser sends, checked before it is used: anything else than what is described here is a ProtocolError.

Text messages are JSON objects with a ``type``; binary ones are replies to frames.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<4I")
"""Of a reply: epoch, number of the frame, bytes of the errors (JSON), bytes of the data. Both begin at whole words."""
MAX_TEXT_BYTES = 1 << 16
MAX_DATA_BYTES = 64 << 20
"""What one staging buffer holds."""
MAX_MESSAGE_BYTES = MAX_DATA_BYTES + MAX_TEXT_BYTES + HEADER.size
MAX_ERRORS = 8
MAX_SAID = 8000
"""Characters of a text of the browser's that is shown to people."""
ERROR_KINDS = ("validation", "out of memory", "internal")
FIELDS: dict[str, dict[str, type]] = {
    "hello": {"version": int, "adapter": dict},
    "opened": {"epoch": int},
    "refused": {"epoch": int, "message": str},
    "lost": {"epoch": int, "message": str},
    "alive": {},
}
"""The text messages, and what each has to say."""


class ProtocolError(ValueError):
    """A message that no page of this package sends."""


@dataclass(frozen=True)
class Reply:
    """What came of a frame: the errors of its calls, ``(kind, message)``, and the bytes that were to be read."""

    epoch: int
    number: int
    errors: tuple[tuple[str, str], ...]
    data: memoryview


def read_reply(message: bytes) -> Reply:
    """A binary message. ProtocolError where it is no reply."""
    if len(message) < HEADER.size:
        raise ProtocolError(f"a reply of {len(message)} bytes")
    epoch, number, error_bytes, data_bytes = HEADER.unpack_from(message)
    start = HEADER.size + -(-error_bytes // 4) * 4
    if error_bytes > MAX_TEXT_BYTES or data_bytes > MAX_DATA_BYTES or start + data_bytes != len(message):
        raise ProtocolError(f"a reply of {len(message)} bytes that says it has {error_bytes} and {data_bytes}")
    errors = _errors(message[HEADER.size : HEADER.size + error_bytes]) if error_bytes else ()
    return Reply(epoch, number, errors, memoryview(message)[start:])


def _errors(text: bytes) -> tuple[tuple[str, str], ...]:
    listed = _json(text)
    if not isinstance(listed, list) or len(listed) > MAX_ERRORS:
        raise ProtocolError("errors that are no short list")
    for one in listed:
        if not (isinstance(one, list) and len(one) == 2 and one[0] in ERROR_KINDS and isinstance(one[1], str)):
            raise ProtocolError("an error that is no kind and message")
    return tuple([(kind, readable(message)) for kind, message in listed])


def readable(text: str, limit: int = MAX_SAID) -> str:
    """A text of the browser's for terminals and logs: cut, and without control characters but line ends and tabs."""
    return "".join([c for c in text[:limit] if c.isprintable() or c in "\n\t"])


def read_text(message: str) -> dict[str, Any]:
    """A text message. ProtocolError where it is none of :data:`FIELDS`."""
    if len(message) > MAX_TEXT_BYTES:
        raise ProtocolError(f"a text message of {len(message)} characters")
    told = _json(message)
    if not isinstance(told, dict) or not isinstance(told.get("type"), str) or told["type"] not in FIELDS:
        raise ProtocolError("a text message of no known type")
    for name, kind in FIELDS[told["type"]].items():
        if type(told.get(name)) is not kind:
            raise ProtocolError(f"a message {told['type']!r} without {name}")
    return told | {"message": readable(told["message"])} if "message" in FIELDS[told["type"]] else told


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"text that is no JSON: {error}") from None
