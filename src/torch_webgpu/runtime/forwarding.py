"""WebGPU implementations that forward to another: decorators of the seam, which change or watch some of its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from .implementation import Adapter, ErrorSink, Implementation, NativeDevice

_STATE = ("sink", "submissions", "null")
NATIVE_CALLS = tuple(
    name for name in (*NativeDevice.__annotations__, *vars(NativeDevice))
    if name not in _STATE and not name.startswith("_")
)  # fmt: skip
"""The names of a :class:`NativeDevice`'s calls."""


class ForwardingDevice(NativeDevice):
    """A ``NativeDevice`` that makes each call of another, ``native``. A subclass overrides the calls that it changes.

    Calls that are not overridden are those of ``native`` themselves, and cost nothing.
    """

    def __init__(self, native: NativeDevice) -> None:
        self.native = native
        self.sink: ErrorSink = native.sink
        self.null = native.null
        for name in NATIVE_CALLS:
            if getattr(type(self), name, None) is getattr(NativeDevice, name, None):
                setattr(self, name, getattr(native, name))

    @property
    def submissions(self) -> int:  # type: ignore[override]
        return self.native.submissions

    def fail(self, kind: Literal["validation", "out of memory", "internal"], message: str) -> None:
        """Leaves an error in the sink, as a library does: the runtime raises it as PyTorch's exception."""
        self.sink.errors.append((kind, message))


class ForwardingImplementation:
    """An ``Implementation`` under a name of its own, whose adapters are those of another.

    Args:
        name: what ``TORCH_WEBGPU_IMPLEMENTATION`` and the doctor call it.
        base: the implementation that the calls go to.
        device: what becomes of each device that is opened, such as a subclass of :class:`ForwardingDevice`.
        adapter: what becomes of each adapter that is listed.
    """

    def __init__(
        self,
        name: str,
        base: Implementation,
        device: Callable[[NativeDevice], NativeDevice],
        adapter: Callable[[Adapter], Adapter] | None = None,
    ) -> None:
        self.name, self.base = name, base
        self.dialect = base.dialect
        self._device, self._adapter = device, adapter

    def version(self) -> str:
        return self.base.version()

    def adapters(self) -> list[Adapter]:
        """The adapter of the base is the handle of the one that stands for it."""
        seen = [one if self._adapter is None else self._adapter(one) for one in self.base.adapters()]
        return [replace(one, implementation=self, handle=one) for one in seen]

    def open(self, adapter: Adapter) -> NativeDevice:
        opened: Any = adapter.handle.open()
        return self._device(opened)
