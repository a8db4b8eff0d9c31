"""wgpu-native, which fails where it is told to: by :data:`FAULTS` in a program, or by ``INJECTED_FAULTS``.

``INJECTED_FAULTS=out-of-memory:3,failed-map:1`` has the third buffer run out of memory, and the first download fail.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from torch.webgpu import registry

KINDS = ("out-of-memory", "failed-pipeline", "failed-map", "lost-device")
"""The calls that fail: ``create_buffer``, ``create_pipeline``, ``map``, and ``run``, which submits."""


class Faults:
    """Which calls fail."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # pipelines are made in several threads
        self._plans: dict[str, list[int]] = {}  # calls until the first one that fails, and how many fail

    def inject(self, kind: str, at: int = 1, times: int = 1) -> None:
        """Has the ``at``-th call of a kind from now on fail, and the ``times - 1`` after it."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of the faults {', '.join(KINDS)}")
        with self._lock:
            self._plans[kind] = [at, times]

    def clear(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._plans.clear()

    def due(self, kind: str) -> bool:
        """Whether the call that is made now is to fail."""
        with self._lock:
            plan = self._plans.get(kind)
            if plan is None:
                return False
            plan[0] -= 1
            if plan[0] > 0:
                return False
            plan[1] -= 1
            if not plan[1]:
                del self._plans[kind]
            return True


FAULTS = Faults()
for text in filter(None, os.environ.get("INJECTED_FAULTS", "").split(",")):
    kind, _, at = text.partition(":")
    FAULTS.inject(kind, int(at or 1))


class FaultyDevice(registry.ForwardingDevice):
    """A device whose calls fail when they are due. What they return can be released, as after a real failure."""

    def create_buffer(self, size_bytes: int, usage: int) -> registry.Handle:
        if FAULTS.due("out-of-memory"):
            self.fail("out of memory", f"Not enough memory left for {size_bytes} bytes (injected)")
        return self.native.create_buffer(size_bytes, usage)

    def create_pipeline(
        self, shader: registry.Handle, layout: registry.Handle, immediate_bytes: int, label: str
    ) -> registry.Handle:
        if FAULTS.due("failed-pipeline"):
            self.fail("validation", f"the pipeline {label} was refused (injected)")
        return self.native.create_pipeline(shader, layout, immediate_bytes, label)

    def map(self, buffer: registry.Handle, size_bytes: int) -> Any:
        if FAULTS.due("failed-map"):
            self.fail("internal", f"mapping {size_bytes} bytes failed (injected)")
            return None
        return self.native.map(buffer, size_bytes)

    def run(self, encoder: registry.Handle) -> bool:
        if FAULTS.due("lost-device"):
            self.sink.lost = "a driver reset (injected)"
            self.native.destroy()
        return self.native.run(encoder)


def start() -> registry.Implementation:
    """The implementation."""
    base = registry.get_device_config("wgpu").initialize()
    return registry.ForwardingImplementation("faults", base, FaultyDevice)


CONFIG = registry.DeviceConfig("faults", start)
