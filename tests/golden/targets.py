"""The targets that golden programs are compiled for, and adapters that are these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch_webgpu.runtime.adapter_target import target_of
from torch_webgpu.runtime.implementation import Adapter
from torch_webgpu.target import Dialect, MatrixConfig, named

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
class Offer:
    """An adapter, as far as compiling asks about it."""

    dialect: Dialect
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=lambda: LIMITS)
    matrices: tuple[MatrixConfig, ...] = ()

    def adapter(self, implementation: Any) -> Adapter:
        implementation.dialect = self.dialect
        return Adapter(implementation, None, GPU, self.features, dict(self.limits), self.matrices)


OFFERS = {
    "rich": Offer("naga", FEATURES),
    "plain": Offer("naga"),
    "matrices": Offer("tint", MATRIX_FEATURES, matrices=MATRICES),
    "browser": Offer("tint", limits=BROWSER_LIMITS),
}
"""An adapter with the usual features, one that has none of them, Dawn's where there are tensor cores, and a page's."""
TARGETS = {name: target_of(offer.adapter(SimpleNamespace())) for name, offer in OFFERS.items()}
TARGETS["browser"] = named("browser")
ALL = tuple(TARGETS)
