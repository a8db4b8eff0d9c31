"""The library: which adapters it offers, what its kernels compute, and which faults its devices have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from tests.webgpu_double.device import CheckedDevice

from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.target import MatrixConfig

KernelFunction = Callable[[Sequence[np.ndarray], bytes, tuple[int, int, int]], None]
"""Computes a dispatch in place: the bytes of each storage binding, the parameters, the grid."""

INFO = {
    "vendor": "nobody",
    "architecture": "",
    "device": "Checked GPU",
    "description": "a test double",
    "vendor_id": 1,
    "device_id": 1,
    "adapter_type": "DiscreteGPU",
    "backend_type": "Vulkan",
    "subgroup_min_size": 32,
    "subgroup_max_size": 32,
}
FEATURES = frozenset({"shader-int64", "shader-f16", "subgroup", "immediates", "timestamp-query"})
LIMITS = {
    "max-buffer-size": 1 << 30,
    "max-storage-buffer-binding-size": 1 << 28,
    "max-uniform-buffer-binding-size": 1 << 16,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroups-per-dimension": 65535,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-immediate-size": 64,
    "min-storage-buffer-offset-alignment": 256,
    "min-uniform-buffer-offset-alignment": 256,
}


@dataclass
class Faults:
    """What goes wrong. May be changed while a device is open."""

    memory_bytes: int | None = None
    """Buffers of more than this in all are out of memory."""
    refused: set[str] = field(default_factory=set)
    """Kernels, by their labels, that the shader compiler refuses."""
    lose_at: int | None = None
    """Which submission, from 1, the device is lost at."""
    loss_told: Literal["callback", "error"] = "callback"
    """Whether the library says so by itself, or in the errors of later calls."""
    late_polls: int = 0
    """How often it must be polled before work is done: marks are reached and memory is free that much later."""
    opens: bool = True
    """Whether a device can be had."""


class CheckedWebGPU:
    """The implementation. ``devices`` are all that were opened; ``kernels`` compute, by the kernel's label.

    A dispatch of any other kernel changes nothing.
    """

    dialect: Literal["naga", "tint"] = "naga"

    def __init__(self, name: str = "checked") -> None:
        self.name = name
        self.faults = Faults()
        self.kernels: dict[str, KernelFunction] = {}
        self.devices: list[CheckedDevice] = []

    def version(self) -> str:
        return "0"

    def adapters(self) -> list[Adapter]:
        return [self.adapter()]

    def adapter(
        self,
        *,
        info: dict[str, Any] | None = None,
        without: Sequence[str] = (),
        limits: dict[str, int] | None = None,
        matrices: tuple[MatrixConfig, ...] = (),
    ) -> Adapter:
        """One with other ``info`` and ``limits`` than the usual, and fewer features."""
        return Adapter(self, object(), INFO | (info or {}), FEATURES - set(without), LIMITS | (limits or {}), matrices)

    def open(self, adapter: Adapter) -> CheckedDevice:
        if not self.faults.opens:
            raise RuntimeError("no device today")
        self.devices.append(CheckedDevice(self, adapter))
        return self.devices[-1]
