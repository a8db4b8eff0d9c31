"""Devices that are only described: plans are compiled for them, and nothing runs on them."""

from __future__ import annotations

from typing import Any, NoReturn

from torch_webgpu.errors import WebGPUError
from torch_webgpu.target import Dialect, Target

from .device import Device
from .implementation import Adapter


class _Nobody:
    """The implementation of adapters that are not there."""

    name = "none"

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def version(self) -> str:
        return ""

    def adapters(self) -> list[Adapter]:
        return []

    def open(self, adapter: Adapter) -> NoReturn:
        raise WebGPUError(f"{adapter.info['device']} is the description of a GPU: plans are compiled for it, no more")


class DescribedDevice(Device):
    """A device for a target, in the place of one for an adapter. What needs it to be open raises WebGPUError."""

    def __init__(self, index: int, target: Target) -> None:
        info: dict[str, Any] = {
            "device": target.name or "a target",
            "adapter_type": "CPU" if target.software else "DiscreteGPU",
        }
        info |= {"subgroup_min_size": target.subgroup_size, "subgroup_max_size": target.subgroup_size}
        limits: dict[str, Any] = {
            "max-buffer-size": target.max_buffer_bytes,
            "max-storage-buffer-binding-size": target.max_binding_bytes,
            "max-storage-buffers-per-shader-stage": target.max_buffers,
            "max-compute-workgroup-storage-size": target.workgroup_bytes,
            "max-compute-invocations-per-workgroup": target.workgroup_threads,
            "max-immediate-size": target.immediates_bytes,
        }
        super().__init__(index, Adapter(_Nobody(target.dialect), None, info, frozenset(), limits, target.matrices))
        self.target = target
