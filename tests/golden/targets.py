"""The adapters that golden programs are compiled for. They need not be there: features and limits are all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_webgpu.runtime.device import Device
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.target import MatrixConfig

LIMITS = {
    "max-buffer-size": 1 << 30,
    "max-compute-invocations-per-workgroup": 1024,
    "max-compute-workgroup-storage-size": 32768,
    "max-compute-workgroups-per-dimension": 65535,
    "max-immediate-size": 128,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-storage-buffers-per-shader-stage": 16,
    "max-uniform-buffer-binding-size": 1 << 16,
    "min-storage-buffer-offset-alignment": 256,
    "min-uniform-buffer-offset-alignment": 256,
}
BROWSER_LIMITS = LIMITS | {
    "max-buffer-size": 1 << 28,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-storage-size": 16384,
    "max-immediate-size": 0,
    "max-storage-buffers-per-shader-stage": 8,
}
"""What every page gets without asking: https://www.w3.org/TR/webgpu/#limit-default."""
FEATURES = frozenset({"shader-int64", "shader-f16", "immediates", "subgroup", "shader-float32-atomic"})
MATRIX_FEATURES = frozenset({"shader-f16", "immediates", "subgroup", "subgroup-size-control"})
MATRICES = (MatrixConfig("f16", "f32", 16, 16, 16, 32),)
GPU = {
    "device": "a GPU", "adapter_type": "DiscreteGPU", "backend_type": "Vulkan", "vendor_id": 1, "device_id": 1
}  # fmt: skip


@dataclass(frozen=True)
class NoImplementation:
    """Whose adapters cannot be opened."""

    dialect: str
    name: str = "none"


@dataclass(frozen=True)
class Target:
    """An adapter, as far as compiling asks about it."""

    dialect: str
    features: frozenset[str] = frozenset()
    limits: Any = None
    matrices: tuple[MatrixConfig, ...] = ()

    def adapter(self, implementation: Any = None) -> Adapter:
        """An adapter of an implementation; without one, an adapter that cannot be opened."""
        implementation = implementation or NoImplementation(self.dialect)
        return Adapter(implementation, None, GPU, self.features, self.limits or LIMITS, self.matrices)


TARGETS = {
    "rich": Target("naga", FEATURES),
    "plain": Target("naga"),
    "matrices": Target("tint", MATRIX_FEATURES, matrices=MATRICES),
    "browser": Target("tint", limits=BROWSER_LIMITS),
}
"""An adapter with the usual features, one that has none of them, Dawn's where there are tensor cores, and a page's."""
ALL = tuple(TARGETS)


def devices() -> tuple[Device, ...]:
    return tuple([Device(k, target.adapter()) for k, target in enumerate(TARGETS.values())])
