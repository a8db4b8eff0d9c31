"""What may look on while a device works: profilers and explanations. No observer, no cost.

An observer sits in ``Device.observer``. It is given every submission instead of the encoder, and told what the engine
planned and lowered. While one is there, the engine keeps to the path that tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch_webgpu.plan import Label

    from .commands import Command


class Observed(Protocol):
    """What an observer knows of its device."""

    index: int
    observer: Observer | None

    def submit_unobserved(self, commands: Sequence[Command]) -> None:
        """Submits past all observers."""


class Observer:
    """Sees nothing and passes everything on: to the observer that was there before, in the end to the device.

    Overridden methods call the inherited ones. Observers are removed in the reverse order of their installation.
    """

    def __init__(self, device: Observed) -> None:
        self.device = device
        self.inner: Observer | None = None

    def install(self) -> None:
        """Begins to look on."""
        self.inner, self.device.observer = self.device.observer, self

    def remove(self) -> None:
        """Looks on no longer."""
        if self.device.observer is not self:
            raise RuntimeError("observers of a device must be removed in the reverse order of their installation")
        self.device.observer = self.inner

    def __enter__(self) -> Observer:
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def submit(self, commands: Sequence[Command]) -> None:
        """Does what :meth:`Device.submit` says, including that nothing of a refused submission runs."""
        if self.inner is not None:
            self.inner.submit(commands)
        else:
            self.device.submit_unobserved(commands)

    def planned(self, nodes: Sequence[Any], compilation: Any, cause: Any) -> None:
        """A recording (of ``ir.operation.Node``) is about to run as this ``compiler.compile.Compilation`` says.

        ``cause``: why now, an ``engine.causes.Cause``.
        """
        if self.inner is not None:
            self.inner.planned(nodes, compilation, cause)

    def encoded(self, label: Label, command: Command) -> None:
        """A step of a plan has become ``command``, which will be submitted later."""
        if self.inner is not None:
            self.inner.encoded(label, command)

    def span(self, kind: str, detail: str = "") -> AbstractContextManager[Any]:
        """Surrounds what the host does: ``kind`` is "flush", "plan", "encode", "submit", "upload", "wait" or
        "fallback".
        """
        return self.inner.span(kind, detail) if self.inner is not None else nullcontext()


def span(device: Observed, kind: str, detail: str = "") -> AbstractContextManager[Any]:
    """:meth:`Observer.span` of the device's observer; nothing when there is none."""
    observer = device.observer
    return _NOTHING if observer is None else observer.span(kind, detail)


_NOTHING = nullcontext()
