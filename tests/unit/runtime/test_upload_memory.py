"""The bytes of kept upload buffers: what is counted is what was made and not given back, whatever fails in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from torch_webgpu.errors import DeviceLostError
from torch_webgpu.runtime import upload_memory
from torch_webgpu.runtime.implementation import ErrorSink, Mark
from torch_webgpu.runtime.upload_memory import UploadMemory

MOST_BYTES = 1 << 12
SIZES = st.integers(1, MOST_BYTES // 4).map(lambda words: 4 * words)


class Native:
    """Buffers as a dictionary of sizes; ``refuse`` names the next call that fails, and how."""

    def __init__(self) -> None:
        self.sink = ErrorSink()
        self.living: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.reading: set[int] = set()
        self.marks: list[tuple[Mark, set[int]]] = []
        self.refuse = ""
        self._made = 0

    def create_buffer(self, size_bytes: int, usage: int) -> int:
        self._made += 1
        self.living[self._made] = size_bytes
        if self.refuse == "memory":
            self.sink.errors.append(("out of memory", "no memory"))
        return self._made

    def release_buffer(self, handle: int) -> None:
        del self.living[handle]  # KeyError: given back twice
        self.mapped.pop(handle, None)

    def map_to_write(self, handle: int, size_bytes: int) -> Any:
        assert handle in self.living
        assert handle not in self.mapped
        assert handle not in self.reading, "it is written into before the GPU has read it"
        assert size_bytes <= self.living[handle]
        if self.refuse == "map":
            self.sink.errors.append(("internal", "not mapped"))
            return None
        if self.refuse == "interrupt":
            raise KeyboardInterrupt
        self.mapped[handle] = size_bytes
        return bytearray(size_bytes)

    def unmap(self, handle: int) -> None:
        del self.mapped[handle]

    def mark(self) -> Mark:
        mark = Mark()
        self.marks.append((mark, set(self.reading)))
        return mark

    def poll(self, wait: bool) -> None:
        for mark, reading in self.marks:
            mark.reached = not reading & self.reading


class Uploads(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.native = Native()
        self.uploads = UploadMemory(self.native)  # type: ignore[arg-type]
        self.writing: list[Any] = []

    @rule(size=SIZES, refuse=st.sampled_from(["", "", "", "memory", "map", "interrupt"]))
    def take(self, size: int, refuse: str) -> None:
        self.native.refuse = refuse
        try:
            block = self.uploads.take(size)
        except KeyboardInterrupt:
            block = None
        if block is not None:
            assert len(block.memory) == size
            self.writing.append(block)
        assert not self.native.sink.errors, "another way was found: the next operation is not to fail for it"

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        block = self.writing.pop(data.draw(st.integers(0, len(self.writing) - 1)))
        self.uploads.close_mapping(block)
        self.native.reading.add(block.buffer.handle)
        self.uploads.give(block)

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.uploads.drop(self.writing.pop(data.draw(st.integers(0, len(self.writing) - 1))))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """By the GPU: some of what was submitted is done."""
        self.native.reading -= set(
            data.draw(st.lists(st.sampled_from(sorted(self.native.reading)))) if self.native.reading else ()
        )

    @rule()
    def release_idle(self) -> None:
        self.uploads.release_idle()

    @rule()
    def close(self) -> None:
        self.uploads.close()
        assert len(self.native.living) == len(self.writing)

    @invariant()
    def counted(self) -> None:
        assert self.uploads._size_bytes == sum(self.native.living.values()) <= MOST_BYTES

    def teardown(self) -> None:
        self.close()
        for block in self.writing:
            self.uploads.drop(block)
        assert not self.native.living
        assert self.uploads._size_bytes == 0


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_memory, "MOST_BYTES", MOST_BYTES)


TestUploads = Uploads.TestCase


def test_a_lost_device_takes_no_more() -> None:
    native = Native()
    uploads = UploadMemory(native)  # type: ignore[arg-type]
    native.refuse, native.sink.lost = "map", "gone"
    with pytest.raises(DeviceLostError):
        uploads.take(64)
    assert uploads._size_bytes == 0
    assert not native.living
