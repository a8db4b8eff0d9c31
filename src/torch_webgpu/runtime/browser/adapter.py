"""What a browser says of its GPU, checked."""

from __future__ import annotations

from typing import Any

from .messages import ProtocolError, readable

LIMITS = {
    "maxBufferSize": "max-buffer-size",
    "maxStorageBufferBindingSize": "max-storage-buffer-binding-size",
    "maxUniformBufferBindingSize": "max-uniform-buffer-binding-size",
    "maxStorageBuffersPerShaderStage": "max-storage-buffers-per-shader-stage",
    "maxComputeWorkgroupsPerDimension": "max-compute-workgroups-per-dimension",
    "maxComputeWorkgroupStorageSize": "max-compute-workgroup-storage-size",
    "maxComputeInvocationsPerWorkgroup": "max-compute-invocations-per-workgroup",
    "maxComputeWorkgroupSizeX": "max-compute-workgroup-size-x",
    "maxComputeWorkgroupSizeY": "max-compute-workgroup-size-y",
    "maxComputeWorkgroupSizeZ": "max-compute-workgroup-size-z",
    "minStorageBufferOffsetAlignment": "min-storage-buffer-offset-alignment",
    "minUniformBufferOffsetAlignment": "min-uniform-buffer-offset-alignment",
}
"""Those that kernels are made for: a browser's name, and this package's."""
FEATURES = {"shader-f16": "shader-f16"}
"""A browser's features that kernels use. Not subgroups, whose size a browser does not tell, nor timestamps, which are
rounded there."""
LEAST = {
    "maxBufferSize": 1 << 28,
    "maxStorageBufferBindingSize": 1 << 27,
    "maxUniformBufferBindingSize": 1 << 16,
    "maxStorageBuffersPerShaderStage": 8,
    "maxComputeWorkgroupsPerDimension": 65535,
    "maxComputeWorkgroupStorageSize": 1 << 14,
    "maxComputeInvocationsPerWorkgroup": 256,
}
"""What every WebGPU has (the specification's default limits)."""
MOST = (1 << 32) - 4
"""Offsets and sizes travel in 32 bits."""
MAX_NAME = 120
MAX_FEATURES = 256


def read_adapter(told: dict[str, Any]) -> dict[str, Any]:
    """``name``, ``vendor``, ``architecture``, ``description``, ``software``, ``features``, ``limits`` under the
    browser's names. ProtocolError for what no browser would say.
    """
    if told.get("available") is not True:
        raise ProtocolError("a browser without a GPU")
    texts = {name: _text(told.get(name, "")) for name in ("vendor", "architecture", "device", "description")}
    features, limits = told.get("features"), told.get("limits")
    if not isinstance(features, list) or len(features) > MAX_FEATURES:
        raise ProtocolError("an adapter without a list of features")
    if not isinstance(limits, dict):
        raise ProtocolError("an adapter without limits")
    known = {name: _limit(name, limits.get(name)) for name in LIMITS}
    browser = browser_name(told)
    parts = [texts["description"] or texts["device"], texts["vendor"], texts["architecture"]]
    gpu = " ".join(dict.fromkeys(part for part in parts if part)) or "GPU"
    return {
        "name": f"{gpu} in {browser}"[:MAX_NAME],
        **texts,
        "software": told.get("fallback") is True or "swiftshader" in gpu.lower(),
        "features": sorted(name for name in FEATURES if name in features),
        "limits": known,
    }


def browser_name(told: dict[str, Any]) -> str:
    """What the browser calls itself. ProtocolError where that is no text."""
    return _text(told.get("browser", "")) or "a browser"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ProtocolError("a description that is no text")
    return " ".join(readable(value, MAX_NAME).split())


def _limit(name: str, value: object) -> int:
    alignment = name.startswith("min")
    if not isinstance(value, int) or isinstance(value, bool) or value < LEAST.get(name, 1):
        raise ProtocolError(f"{name} {value!r}, which is less than every WebGPU has")
    if alignment and (value > 256 or value & (value - 1)):
        raise ProtocolError(f"{name} {value!r}")
    return min(value, MOST)
