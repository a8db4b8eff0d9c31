"""What handles stand for, how long they live, and the rules of what they may be made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_webgpu.runtime.implementation import Adapter

if TYPE_CHECKING:
    from tests.webgpu_double.device import CheckedDevice

MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST, UNIFORM, STORAGE, QUERY_RESOLVE = 0x1, 0x2, 0x4, 0x8, 0x40, 0x80, 0x200
MAX_QUERIES = 4096


class ValidationError(AssertionError):
    """A call that WebGPU forbids, or that comes at the wrong time."""


def rule(holds: object, text: str) -> None:
    """Raises ValidationError unless it holds."""
    if not holds:
        raise ValidationError(text)


class Object:
    """What a handle stands for. It lives until it is released as often as it was made and retained."""

    _numbers = count()

    def __init__(self, device: CheckedDevice, label: str = "") -> None:
        self.device, self.label = device, label
        self.number = next(Object._numbers)
        self.references = 1
        self.valid = not device.lost  # an invalid one may only be released
        self.of_lost_device = device.lost
        device.alive.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}{' ' + repr(self.label) if self.label else ''}>"

    def release(self) -> None:
        rule(self.references, f"{self} is released once too often")
        self.references -= 1
        if not self.references:
            self.device.alive.discard(self)
            self.gone()

    def gone(self) -> None:
        """Nobody holds it any more."""


class Buffer(Object):
    """Bytes. Its memory is free when it was released and no bind group and no work underway names it."""

    def __init__(self, device: CheckedDevice, size_bytes: int, usage: int) -> None:
        super().__init__(device)
        self.size_bytes, self.usage = size_bytes, usage
        self.label = f"{size_bytes} bytes"
        self.bytes = np.empty(0, np.uint8)
        self.mapped: memoryview | None = None
        self._users = 1

    def fill(self) -> None:
        """Takes memory."""
        self.bytes = np.zeros(self.size_bytes, np.uint8)
        self.device.memory_bytes += self.size_bytes

    def hold(self) -> None:
        """One more names it."""
        self._users += 1

    def drop(self) -> None:
        """One fewer names it."""
        self._users -= 1
        if not self._users:
            self.device.memory_bytes -= self.bytes.size
            self.bytes = np.empty(0, np.uint8)

    def gone(self) -> None:
        rule(self.mapped is None, f"{self} is released while it is mapped")
        self.drop()

    def check_range(self, offset: int, size: int, usage: int, what: str, alignment: int = 4) -> None:
        """The rules of every access to a part of a buffer."""
        rule(self.usage & usage, f"{what}: {self} was not made for that (usage {self.usage:#x}, needed {usage:#x})")
        rule(offset % alignment == 0, f"{what}: offset {offset} of {self} is no multiple of {alignment}")
        rule(size % 4 == 0, f"{what}: size {size} is no multiple of 4")
        rule(offset >= 0 and size >= 0, f"{what}: {size} bytes at {offset}")
        rule(offset + size <= self.size_bytes, f"{what}: {size} bytes at {offset} are not within {self}")


_BINDING = re.compile(r"@binding\((\d+)\)\s*var<([^>]*)>")
_IMMEDIATE = re.compile(r"\bvar<immediate>")
_KINDS = {"storage": "read", "storage, read": "read", "storage, read_write": "read_write", "uniform": "uniform"}


class Shader(Object):
    """A module: what it declares."""

    def __init__(self, device: CheckedDevice, source: str, label: str) -> None:
        super().__init__(device, label)
        rule(re.search(r"\bfn\s+main\b", source), f"the shader {label} has no main")
        self.bindings = {int(k): _KINDS[kind] for k, kind in _BINDING.findall(source)}
        self.has_immediates = bool(_IMMEDIATE.search(source))


class Layout(Object):
    """Of bind group 0: the kind of each binding."""

    def __init__(self, device: CheckedDevice, writable: Sequence[bool], uniform: bool) -> None:
        super().__init__(device)
        most = device.adapter.limits["max-storage-buffers-per-shader-stage"]
        rule(len(writable) <= most, f"{len(writable)} storage buffers in a layout, of {most}")
        self.kinds = (*("read_write" if flag else "read" for flag in writable), *(["uniform"] if uniform else ()))


class Pipeline(Object):
    """A compute pipeline."""

    def __init__(self, device: CheckedDevice, shader: Shader, layout: Layout, immediate_bytes: int, label: str) -> None:
        super().__init__(device, label)
        self.kinds, self.immediate_bytes = layout.kinds, immediate_bytes
        limits = device.adapter.limits
        most = limits["max-immediate-size"] if "immediates" in device.adapter.features else 0
        rule(immediate_bytes <= most, f"{self}: {immediate_bytes} bytes of immediates, of {most}")
        rule(immediate_bytes % 4 == 0, f"{self}: {immediate_bytes} bytes of immediates are not whole words")
        rule(not shader.has_immediates or immediate_bytes, f"{self}: its immediates are not in the layout")
        for binding, kind in shader.bindings.items():
            laid_out = layout.kinds[binding] if binding < len(layout.kinds) else "absent"
            rule(laid_out == kind, f"{self}: binding {binding} is {kind} in the shader, {laid_out} in the layout")


class BindGroup(Object):
    """Buffers, or parts of them, in binding order."""

    def __init__(self, device: CheckedDevice, layout: Layout, ranges: Sequence[tuple[Buffer, int, int]]) -> None:
        super().__init__(device)
        rule(len(ranges) == len(layout.kinds), f"{len(ranges)} bindings for a layout of {len(layout.kinds)}")
        self.kinds, self.ranges = layout.kinds, tuple(ranges)
        for binding, (kind, (buffer, offset, size)) in enumerate(zip(layout.kinds, ranges, strict=True)):
            _check_binding(f"binding {binding}", device.adapter, kind, buffer, offset, size)
        self._check_aliases()
        for buffer, _, _ in ranges:
            buffer.hold()

    def _check_aliases(self) -> None:
        """A dispatch may read a buffer in many places, or write it in parts that do not overlap; not both."""
        for k, (buffer, offset, size) in enumerate(self.ranges):
            for j, (other, start, length) in enumerate(self.ranges[:k]):
                if buffer is other and (self.kinds[k] == "read_write" or self.kinds[j] == "read_write"):
                    where = f"bindings {j} and {k} of {self} are both {buffer}"
                    rule(self.kinds[j] == self.kinds[k], f"{where}, read and written")
                    rule(offset + size <= start or start + length <= offset, f"{where}, written where they overlap")

    def gone(self) -> None:
        for buffer, _, _ in self.ranges:
            buffer.drop()


def _check_binding(what: str, adapter: Adapter, kind: str, buffer: Buffer, offset: int, size: int) -> None:
    storage = kind != "uniform"
    name = "storage" if storage else "uniform"
    alignment = adapter.limits[f"min-{name}-buffer-offset-alignment"]
    most = adapter.limits[f"max-{name}-buffer-binding-size"]
    buffer.check_range(offset, size, STORAGE if storage else UNIFORM, what, alignment)
    rule(0 < size <= most, f"{what}: {size} bytes of {buffer} are bound, of at most {most}")


class QuerySet(Object):
    """Timestamps in ticks; None where nothing was written."""

    def __init__(self, device: CheckedDevice, size: int) -> None:
        super().__init__(device)
        rule("timestamp-query" in device.adapter.features, "the device has no timestamp queries")
        rule(0 < size <= MAX_QUERIES, f"a query set of {size}")
        self.ticks: list[int | None] = [None] * size

    def check_range(self, first: int, size: int, what: str) -> None:
        rule(
            first >= 0 and size >= 0 and first + size <= len(self.ticks),
            f"{what}: queries {first} to {first + size} of {self}, which has {len(self.ticks)}",
        )


class Offsets(list[int]):
    """An array of dynamic offsets."""


class HostMemory:
    """A pointer to bytes of the host's."""

    def __init__(self, data: Any) -> None:
        self.view = memoryview(data).cast("B")
