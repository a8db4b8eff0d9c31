"""The commands of a frame, as 32-bit words: what ``page/gpu.js`` reads.

A frame is one binary message: :data:`HEADER_WORDS` words, then commands. Each command is its code, the number of words
that follow, and those. A submission's words are calls of an encoder, of fixed lengths.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

HEADER_WORDS = 6
"""Epoch of the device, number of the frame, what is wanted (below), the buffer to read, bytes to read, zero."""
ACKNOWLEDGE, WORK_DONE, READ = range(3)
"""What a frame's reply waits for: that the calls were checked, that submitted work is done, the bytes of a buffer."""

CREATE_BUFFER, WRITE_BUFFER, CREATE_SHADER, CREATE_LAYOUT, CREATE_PIPELINE, CREATE_GROUP, RELEASE, SUBMIT = range(1, 9)
BUFFER, SHADER, LAYOUT, PIPELINE, GROUP = range(1, 6)
"""Kinds of objects. Each object has a number, that its kind counts."""
BEGIN_PASS, SET_PIPELINE, SET_GROUP, SET_GROUP_AT, DISPATCH, END_PASS, COPY, CLEAR = range(1, 9)
"""Calls of a submission."""

MAX_WRITE_BYTES = 4 << 20
"""The most that one command writes; longer writes are several."""
SEND_BYTES = 512 << 10
"""Commands that take more than this are sent, although nobody asks for a result yet."""


def words(values: Iterable[int]) -> bytes:
    """Unsigned 32-bit words, little-endian, as browsers have them."""
    data = array("I", values)
    if sys.byteorder != "little":
        data.byteswap()
    return data.tobytes()


def header(epoch: int, number: int, want: int, buffer: int, size_bytes: int) -> bytes:
    """The first words of a frame."""
    return words((epoch, number, want, buffer, size_bytes, 0))


def command(code: int, values: Sequence[int], *data: bytes | memoryview) -> list[bytes | memoryview]:
    """A command of words, then of data, each part of which is filled up to whole words."""
    parts: list[bytes | memoryview] = []
    length = len(values)
    for part in data:
        size = len(part)
        parts.append(part)
        if size % 4:
            parts.append(bytes(-size % 4))
        length += -(-size // 4)
    return [words((code, length, *values)), *parts]
