"""What a page's GPU is asked for: targets of exports, and requirements as WebGPU's features and limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch_webgpu.errors import ExportError, did_you_mean
from torch_webgpu.plan import Requirements
from torch_webgpu.target import Target, named, names

PORTABLE = "portable"
BROWSER = "browser"
_LARGE_BYTES = (1 << 31) - 4
VARIANTS = {
    PORTABLE: "what every browser with WebGPU has",
    "f16": "portable, and computes in float16 where the model does (the feature shader-f16)",
    "portable-large": "portable, and asks for buffers above 256 MiB where a tensor needs one",
}
"""The names of targets that only exports have, for people."""
_FEATURES = {"float16": "shader-f16", "subgroups": "subgroups"}
_LIMITS = {
    "max_buffers": ("maxStorageBuffersPerShaderStage", 8),
    "workgroup_bytes": ("maxComputeWorkgroupStorageSize", 16384),
    "workgroup_threads": ("maxComputeInvocationsPerWorkgroup", 256),
    "max_buffer_bytes": ("maxBufferSize", 1 << 28),
}
"""Of :class:`Requirements`: WebGPU's names, and what every device has."""
_BINDING_BYTES = 1 << 27


def target_named(which: str | Target) -> Target:
    """The target of an export by its name. ExportError for one that no browser is, ValueError for an unknown name."""
    browser = named(BROWSER)
    if which == PORTABLE:
        return replace(browser, name=PORTABLE)
    if which == "f16":
        return replace(browser, float16=True, name="f16")
    if which == "portable-large":
        return replace(browser, max_buffer_bytes=_LARGE_BYTES, name="portable-large")
    if isinstance(which, str):
        if which not in names():
            usable = [*VARIANTS, *[name for name in names() if is_browser(named(name))]]
            known = [*VARIANTS, *names()]
            raise ValueError(f"there is no target {which!r}{did_you_mean(which, known)}: {', '.join(usable)}")
        which = named(which)
    if not is_browser(which):
        raise ExportError(
            f"the target {which.name or which} is no browser: WGSL there has no 64-bit numbers, atomic floats or "
            f"matrices. Use one of {', '.join(VARIANTS)}"
        )
    return replace(which, immediates_bytes=0, rounds_f16=False)  # a page runs on whatever GPU there is


def is_browser(target: Target) -> bool:
    """Whether its WGSL is what browsers take."""
    beyond = target.int64 or target.float64 or target.matrices or target.float32_atomics
    return target.dialect == "tint" and not beyond


def needs(requirements: Iterable[Requirements], target: Target) -> dict[str, object]:
    """The features and the limits, in WebGPU's words, that plans need beyond what every device has."""
    features: set[str] = set()
    limits: dict[str, int] = {}
    for one in requirements:
        features.update(_FEATURES[name] for name in one.features)
        for name, (webgpu, default) in _LIMITS.items():
            if getattr(one, name) > default:
                limits[webgpu] = max(limits.get(webgpu, 0), getattr(one, name))
    if target.max_binding_bytes > _BINDING_BYTES:
        limits["maxStorageBufferBindingSize"] = target.max_binding_bytes
    return {"features": sorted(features), "limits": limits}
