"""A device in a browser's tab: the calls of the seam, written down as commands and sent when somebody waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import sleep
from typing import Any

from torch_webgpu.runtime.implementation import ErrorSink, Handle, Mark

from . import commands as c
from .messages import Reply
from .session import Session

IDLE_S = 0.008
"""Commands that wait for so long, with none added, are sent: the GPU works while the host does something else."""
CONFIRM_BYTES = 1 << 20
"""Larger buffers are made at once, and their errors told by the call: smaller ones' come with the next reply."""


class EncoderWords(list[int]):
    """What was encoded: the words of a submission. A compute pass is its encoder."""


class BrowserDevice:
    """A ``NativeDevice``. Handles are numbers, which each kind of objects counts.

    Nothing is asked of the page but where an answer is needed: reads, waits, new pipelines and large new buffers. All
    else waits to travel with the next of these, or until it is :data:`commands.SEND_BYTES` long, or until nothing was
    added for :data:`IDLE_S`. Errors of the calls come with the reply to their frame.
    """

    def __init__(self, session: Session, epoch: int, idle_s: float = IDLE_S) -> None:
        self.session, self.epoch = session, epoch
        self.sink = ErrorSink()
        self.submissions = 0
        self.null: Any = None
        self._idle_s = idle_s
        self._lock = threading.RLock()
        self._parts: list[bytes | memoryview] = []
        self._size_bytes = 0
        self._edition = 0  # of what waits to be sent
        self._numbers = {kind: [0] for kind in (c.BUFFER, c.SHADER, c.LAYOUT, c.PIPELINE, c.GROUP)}
        self._references: dict[int, int] = {}  # of pipelines
        self._open_encoders = 0
        self._released: list[tuple[int, int]] = []  # while there are encoders, which may name them
        self._marks: list[tuple[int, Mark]] = []  # and after how many submissions they are
        self._asked: tuple[int, int] | None = None  # a frame, and how many submissions are done once it is answered
        self._done = 0  # so many submissions are known to be
        self._closed = False
        self._wake = threading.Event()
        session.attach(epoch, lambda kind, text: self.sink.errors.append((kind, text)), self._lose)
        threading.Thread(target=self._send_idle, name="webgpu-browser-sender", daemon=True).start()

    def _lose(self, why: str) -> None:
        self.sink.lost = self.sink.lost or why

    # What goes out

    def _add(self, code: int, values: Sequence[int], *data: bytes | memoryview) -> None:
        if self.sink.lost is not None:
            return
        with self._lock:
            parts = c.command(code, values, *data)
            self._parts += parts
            self._size_bytes += sum(map(len, parts))
            self._edition += 1
            if self._size_bytes >= c.SEND_BYTES:
                self._send("full")
            elif not self._wake.is_set():
                self._wake.set()

    def _send(self, cause: str, want: int = c.ACKNOWLEDGE, buffer: int = 0, size_bytes: int | None = None) -> int:
        """Sends what waits, in one frame; its number. ``size_bytes`` as :meth:`Session.send_frame`'s."""
        session = self.session
        with self._lock:
            number = session.next_number()
            head = c.header(self.epoch, number, want, buffer, size_bytes or 0)
            frame = b"".join([head, *self._parts])
            self._parts, self._size_bytes = [], 0
            session.counts[cause] += 1
            session.send_frame(number, frame, size_bytes)
        return number

    def _exchange(self, want: int = c.ACKNOWLEDGE, buffer: int = 0, size_bytes: int = 0) -> Reply | None:
        """Sends what waits, and waits for the reply; None where the device is lost."""
        if self.sink.lost is not None:
            return None
        with self._lock:
            submissions = self.submissions
            number = self._send("asked", want, buffer, size_bytes)
        reply = self.session.reply(number)
        if reply is not None and want != c.ACKNOWLEDGE:
            self._done = max(self._done, submissions)
        return reply

    def _send_idle(self) -> None:
        """Sends what nobody adds to any more."""
        while not self._closed and self.sink.lost is None:
            if not self._wake.wait(1.0):
                continue
            self._wake.clear()
            edition = -1
            while edition != self._edition and self._parts:
                edition = self._edition
                sleep(self._idle_s)
            with self._lock:
                if self._parts and not self._closed:
                    self._send("idle")

    # Numbers of objects

    def _take_number(self, kind: int) -> int:
        """The last entry is the first number that was never used; those before it are free again."""
        with self._lock:
            free = self._numbers[kind]
            number = free.pop()
            if not free:
                free.append(number + 1)
            return number

    def _release(self, kind: int, number: int) -> None:
        with self._lock:
            if self._open_encoders:
                self._released.append((kind, number))
                return
            self._add(c.RELEASE, (kind, number))
            self._numbers[kind].append(number)

    def _encoder_done(self) -> None:
        self._open_encoders -= 1
        if not self._open_encoders and self._released:
            released, self._released = self._released, []
            for kind, number in released:
                self._release(kind, number)

    def release_buffer(self, handle: Handle) -> None:
        self._release(c.BUFFER, handle)

    def release_layout(self, handle: Handle) -> None:
        self._release(c.LAYOUT, handle)

    def release_shader(self, handle: Handle) -> None:
        self._release(c.SHADER, handle)

    def release_bind_group(self, handle: Handle) -> None:
        self._release(c.GROUP, handle)

    def retain_pipeline(self, handle: Handle) -> None:
        with self._lock:
            self._references[handle] += 1

    def release_pipeline(self, handle: Handle) -> None:
        with self._lock:
            self._references[handle] -= 1
            if not self._references[handle]:
                del self._references[handle]
                self._release(c.PIPELINE, handle)

    # Buffers

    def host_memory(self, data: bytes | bytearray) -> Any:
        return data

    def offsets(self, count: int) -> list[int]:
        return [0] * count

    def create_buffer(self, size_bytes: int, usage: int) -> Handle:
        number = self._take_number(c.BUFFER)
        self._add(c.CREATE_BUFFER, (number, usage, size_bytes))
        if size_bytes >= CONFIRM_BYTES:
            self._exchange()
        return number

    def write_buffer(self, buffer: Handle, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), c.MAX_WRITE_BYTES):
            part = bytes(view[start : start + c.MAX_WRITE_BYTES])
            self._add(c.WRITE_BUFFER, (buffer, offset + start, len(part)), part)

    def map(self, buffer: Handle, size_bytes: int) -> memoryview | None:
        reply = self._exchange(c.READ, buffer, size_bytes)
        if reply is None or len(reply.data) != size_bytes:
            self.sink.errors.append(("internal", f"reading {size_bytes} bytes from the browser failed"))
            return None
        return reply.data

    def unmap(self, buffer: Handle) -> None:
        """Nothing: the page has unmapped it when it answers."""

    # Pipelines

    def create_shader(self, source: str, label: str, trusted: bool) -> Handle:
        number = self._take_number(c.SHADER)
        name, text = label.encode(), source.encode()
        self._add(c.CREATE_SHADER, (number, len(name), len(text)), name, text)
        return number

    def create_layout(self, writable: Sequence[bool], uniform: bool) -> Handle:
        number = self._take_number(c.LAYOUT)
        self._add(c.CREATE_LAYOUT, (number, int(uniform), *map(int, writable)))
        return number

    def create_pipeline(self, shader: Handle, layout: Handle, immediate_bytes: int, label: str) -> Handle:
        """Waits, so that what is wrong with a shader is told by the calls that made it."""
        with self._lock:
            number = self._take_number(c.PIPELINE)
            self._references[number] = 1
            name = label.encode()
            self._add(c.CREATE_PIPELINE, (number, shader, layout, len(name)), name)
        self._exchange()
        return number

    def create_bind_group(self, layout: Handle, ranges: Sequence[tuple[Handle, int, int]]) -> Handle:
        number = self._take_number(c.GROUP)
        self._add(c.CREATE_GROUP, (number, layout, *[value for bound in ranges for value in bound]))
        return number

    # Commands

    def create_encoder(self) -> EncoderWords:
        self._open_encoders += 1
        return EncoderWords()

    def release_encoder(self, encoder: EncoderWords) -> None:
        self._encoder_done()

    def begin_pass(self, encoder: EncoderWords) -> EncoderWords:
        encoder.append(c.BEGIN_PASS)
        return encoder

    @staticmethod
    def set_pipeline(words: EncoderWords, pipeline: Handle) -> None:
        words += (c.SET_PIPELINE, pipeline)

    @staticmethod
    def set_bind_group(words: EncoderWords, index: int, group: Handle, count: int, offsets: Any) -> None:
        if count:
            words += (c.SET_GROUP_AT, group, offsets[0])
        else:
            words += (c.SET_GROUP, group)

    def set_immediates(self, words: EncoderWords, offset: int, data: Any, size: int) -> None:
        self.sink.errors.append(("validation", "browsers have no immediates"))

    @staticmethod
    def dispatch_workgroups(words: EncoderWords, x: int, y: int, z: int) -> None:
        words += (c.DISPATCH, x, y, z)

    @staticmethod
    def end_pass(words: EncoderWords) -> None:
        words.append(c.END_PASS)

    @staticmethod
    def release_pass(words: EncoderWords) -> None:
        """Nothing: it is its encoder."""

    def copy_buffer(
        self, words: EncoderWords, source: Handle, start: int, target: Handle, offset: int, size: int
    ) -> None:
        self._check_aligned("a copy", start, offset, size)
        words += (c.COPY, source, start, target, offset, size)

    def clear_buffer(self, words: EncoderWords, buffer: Handle, offset: int, size: int) -> None:
        self._check_aligned("a clear", offset, size)
        words += (c.CLEAR, buffer, offset, size)

    def _check_aligned(self, what: str, *numbers: int) -> None:
        """Leaves an error at once, so that nothing of a wrong submission runs: the page's comes with a later reply."""
        if any(number % 4 for number in numbers):
            told = ", ".join(map(str, numbers))
            self.sink.errors.append(("validation", f"offsets and sizes of {what} are multiples of 4 bytes, not {told}"))

    # Timestamps, which the adapter says it has not

    def begin_timed_pass(self, encoder: EncoderWords, *, query_set: Handle, first_query: int) -> EncoderWords:
        self._no_timestamps()
        return self.begin_pass(encoder)

    def create_timestamps(self, count: int) -> Handle:
        self._no_timestamps()
        return 0

    def release_timestamps(self, handle: Handle) -> None:
        """Nothing: there are none."""

    def resolve_query_set(
        self, words: EncoderWords, queries: Handle, first: int, count: int, buffer: Handle, offset: int
    ) -> None:
        self._no_timestamps()

    def timestamp_period_ns(self) -> float:
        return 1.0

    def _no_timestamps(self) -> None:
        self.sink.errors.append(("validation", "a browser's device has no timestamp queries"))

    # The queue

    def run(self, encoder: EncoderWords) -> bool:
        well = not self.sink.errors and self.sink.lost is None
        if well:
            self._add(c.SUBMIT, encoder)
            self.submissions += 1
        self._encoder_done()
        return well

    def flush_writes(self) -> bool:
        """Nothing to submit: writes are in order with all else, and are sent by their own size."""
        return not self.sink.errors and self.sink.lost is None

    def poll(self, wait: bool) -> None:
        if wait:
            self._exchange(c.WORK_DONE)
        if self._asked is not None and self.session.is_answered(self._asked[0]):
            self._done, self._asked = max(self._done, self._asked[1]), None
        unmet = any(place > self._done for place, _ in self._marks)
        if unmet and self._asked is None and self.sink.lost is None:
            with self._lock:
                self._asked = self._send("asked", c.WORK_DONE), self.submissions
        waiting = []
        for place, mark in self._marks:
            mark.reached = place <= self._done
            if not mark.reached:
                waiting.append((place, mark))
        self._marks = waiting

    def mark(self) -> Mark:
        mark = Mark()
        self._marks.append((self.submissions, mark))
        return mark

    def destroy(self) -> None:
        self.session.tell(type="close", epoch=self.epoch)
        self._lose("it was destroyed")

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self.session.detach(self.epoch)
        self.session.tell(type="close", epoch=self.epoch)
        self._lose("it was closed")
