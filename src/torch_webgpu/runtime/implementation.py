"""The seam: what this package asks of a WebGPU implementation, and all it may ask.

An :class:`Implementation` lists :class:`Adapter` objects and opens one as a :class:`NativeDevice`; no more of it is
known elsewhere. The calls are WebGPU's own, under Python's names. ``wgpu_native.py`` and ``dawn.py`` answer them with
one C library each (what both do alike is ``webgpu_h.py``), the tests' double with checks and no GPU; another one is a
file like them, named in ``adapters.py``.

**Handles** are opaque; whoever creates one releases it. **Errors** are never raised by these calls: they arrive in the
device's :class:`ErrorSink`, from the thread whose call caused them and before it returns, and what a refused call
returned is a handle that may only be released (but for a shader, whose pipeline is refused, too). **Order**: calls on
one device come from one thread at a time (the engine's lock), but for the creation of shaders and pipelines, which may
come from several. **Callbacks** run inside calls of this seam, or on a thread of the library's; they only leave word in
an object of this file.

The calls of the hot loop (``set_pipeline`` … ``dispatch_workgroups``) are attributes that hold the C functions
themselves, so that the seam costs a dispatch nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch_webgpu.errors import DeviceLostError
from torch_webgpu.target import MatrixConfig

Handle = Any
"""An object of the library's; what it is, only the implementation knows."""

# Buffer usages, as WebGPU numbers them; BUFFER is what tensors live in.
_MAP_READ, _MAP_WRITE, _COPY_SRC, _COPY_DST, _UNIFORM, _STORAGE, _QUERY_RESOLVE = 0x1, 0x2, 0x4, 0x8, 0x40, 0x80, 0x200
BUFFER = _STORAGE | _QUERY_RESOLVE | _COPY_SRC | _COPY_DST
UNIFORM = _UNIFORM | _COPY_DST
READBACK = _MAP_READ | _COPY_DST
UPLOAD = _MAP_WRITE | _COPY_SRC


@dataclass
class ErrorSink:
    """Where the callbacks of one device leave what they were told, until a Python call collects it."""

    errors: deque[tuple[str, str]] = field(default_factory=deque)  # (kind, message), oldest first
    lost: str | None = None

    def take(self) -> list[tuple[str, str]]:
        """The errors since the last call, now the caller's to raise. Raises DeviceLostError when they mean that."""
        if self.errors and self.loss is not None:
            self.lost = self.loss  # whatever comes next, with or without an error of its own
            raise DeviceLostError(f"the webgpu device was lost: {self.lost}")
        # One by one: a callback of another thread may add one meanwhile, which is not to be lost.
        return [self.errors.popleft() for _ in range(len(self.errors))]

    @property
    def loss(self) -> str | None:
        """Why the device is gone, as told by the library or by an error; None while it lives."""
        told = [message for _, message in self.errors.copy() if "device is lost" in message.lower()]
        return self.lost or (told[0] if told else None)


class Mark:
    """A place in a queue. ``reached`` turns true in the first poll after the work submitted before it is done."""

    def __init__(self) -> None:
        self.reached = False


@dataclass(frozen=True)
class Adapter:
    """One GPU as one backend of one implementation offers it.

    ``info`` has the keys vendor, architecture, device, description, vendor_id, device_id, adapter_type, backend_type,
    subgroup_min_size and subgroup_max_size; ``features`` wgpu's names; ``limits`` WebGPU's, in kebab case; ``matrices``
    the products of fragments that a subgroup computes at once.
    """

    implementation: Implementation
    handle: Handle
    info: dict[str, Any]
    features: frozenset[str]
    limits: dict[str, int]
    matrices: tuple[MatrixConfig, ...] = ()

    def open(self) -> NativeDevice:
        """A new device with all of these features and limits. Raises RuntimeError where the adapter refuses."""
        return self.implementation.open(self)


class Implementation(Protocol):
    """A WebGPU library. ``dialect``: whose WGSL compiler reads the shaders."""

    name: str
    dialect: Literal["naga", "tint"]

    def version(self) -> str:
        """Of the library."""

    def adapters(self) -> list[Adapter]:
        """What it offers on this machine; an adapter may come once a backend."""

    def open(self, adapter: Adapter) -> NativeDevice:
        """See :meth:`Adapter.open`."""


class NativeDevice(Protocol):
    """An open device and its queue."""

    sink: ErrorSink
    submissions: int
    null: Any
    """No dynamic offsets."""

    # The hot loop's calls, positional as in webgpu.h.
    set_pipeline: Callable[[Handle, Handle], object]
    set_bind_group: Callable[[Handle, int, Handle, int, Any], object]
    """(pass, 0, group, number of dynamic offsets, offsets)"""
    set_immediates: Callable[[Handle, int, Any, int], object]
    """(pass, 0, data, size in bytes)"""
    dispatch_workgroups: Callable[[Handle, int, int, int], object]
    end_pass: Callable[[Handle], object]
    release_pass: Callable[[Handle], object]
    copy_buffer: Callable[[Handle, Handle, int, Handle, int, int], object]
    """(encoder, source, its offset, destination, its offset, bytes)"""
    clear_buffer: Callable[[Handle, Handle, int, int], object]
    """(encoder, buffer, offset, bytes)"""
    resolve_query_set: Callable[[Handle, Handle, int, int, Handle, int], object]
    """(encoder, query set, first, count, buffer, offset)"""
    release_encoder: Callable[[Handle], object]
    release_bind_group: Callable[[Handle], object]
    release_buffer: Callable[[Handle], object]
    """Frees the memory once submitted work and bind groups that use it are gone."""
    release_layout: Callable[[Handle], object]
    release_shader: Callable[[Handle], object]
    release_pipeline: Callable[[Handle], object]
    release_timestamps: Callable[[Handle], object]
    retain_pipeline: Callable[[Handle], object]
    unmap: Callable[[Handle], object]

    def host_memory(self, data: bytes | bytearray) -> Any:
        """A pointer to ``data`` that keeps it alive, for calls that are made often."""

    def offsets(self, count: int) -> Any:
        """An array for dynamic offsets."""

    def create_buffer(self, size_bytes: int, usage: int) -> Handle:
        """A buffer of zeros."""

    def import_host_memory(self, memory: memoryview, usage: int) -> Handle:
        """A buffer that is this host memory, which stays as long as the buffer. Whole pages. Only where the adapter has
        the feature host-mapped-pointer."""

    def write_buffer(self, buffer: Handle, offset: int, data: Any) -> None:
        """Copies whole words of host memory in, ordered before the next submission."""

    def map(self, buffer: Handle, size_bytes: int) -> Any:
        """Waits until the buffer can be read; its bytes as a buffer object, valid until ``unmap``; None on errors."""

    def map_to_write(self, buffer: Handle, size_bytes: int) -> Any:
        """:meth:`map` of a buffer that the host writes. One that has not this method uploads by ``write_buffer``."""

    def create_shader(self, source: str, label: str, trusted: bool) -> Handle:
        """A shader module. A trusted one may be compiled without bounds checks."""

    def create_layout(self, writable: Sequence[bool], uniform: bool) -> Handle:
        """The layout of bind group 0: a storage buffer a flag, then perhaps a uniform buffer with a dynamic offset."""

    def create_pipeline(self, shader: Handle, layout: Handle, immediate_bytes: int, label: str) -> Handle:
        """A compute pipeline of the module's ``main``."""

    def create_bind_group(self, layout: Handle, ranges: Sequence[tuple[Handle, int, int]]) -> Handle:
        """Bind group 0 from ``(buffer, offset, size)`` in binding order."""

    def create_encoder(self) -> Handle:
        """A command encoder."""

    def begin_pass(self, encoder: Handle) -> Handle:
        """A compute pass."""

    def begin_timed_pass(self, encoder: Handle, *, query_set: Handle, first_query: int) -> Handle:
        """A compute pass that writes its begin and end times to ``first_query`` and the next one."""

    def create_timestamps(self, count: int) -> Handle:
        """A query set."""

    def timestamp_period_ns(self) -> float:
        """What one tick of a timestamp is."""

    def run(self, encoder: Handle) -> bool:
        """Submits what was encoded, after pending writes, and releases it; False, with the reason in the sink, when it
        is invalid or anything was before."""

    def flush_writes(self) -> bool:
        """Submits pending :meth:`write_buffer` calls on their own, which bounds the library's staging memory."""

    def poll(self, wait: bool) -> None:
        """Runs the callbacks that are due; with ``wait``, after all submitted work is done."""

    def mark(self) -> Mark:
        """A mark after everything submitted so far."""

    def destroy(self) -> None:
        """Makes the adapter give up the device, as a driver reset would: it is lost from now on."""

    def close(self) -> None:
        """Destroys and releases the device. What it created was released before; nothing may use it afterwards."""
