"""wgpu-py's library and header, with the types that are asked for parsed at once.

cffi parses the name of a type when it is first used, and before each the names of all types of the header: 10 ms each,
30 times, until the first kernel has run.
"""

from __future__ import annotations

from typing import Any

from torch_webgpu.collector import without_collection

WORD = "WGPUStringView, void *, void *"
FUNCTIONS = (
    f"void(WGPUDevice const *, WGPUErrorType, {WORD})",
    f"void(WGPUDevice const *, WGPUDeviceLostReason, {WORD})",
    f"void(WGPURequestDeviceStatus, WGPUDevice, {WORD})",
    f"void(WGPURequestAdapterStatus, WGPUAdapter, {WORD})",
    f"void(WGPUQueueWorkDoneStatus, {WORD})",
    f"void(WGPUMapAsyncStatus, {WORD})",
)
ARRAYS = (
    "char[]",
    "WGPUAdapter[]",
    "WGPUBindGroupEntry[]",
    "WGPUBindGroupLayoutEntry[]",
    "WGPUBindGroupLayout[1]",
    "WGPUCommandBuffer[1]",
    "WGPUFeatureName[]",
)
STRUCTS = (
    "WGPUAdapterInfo *",
    "WGPUBindGroupDescriptor *",
    "WGPUBindGroupLayoutDescriptor *",
    "WGPUBufferDescriptor *",
    "WGPUBufferMapCallbackInfo *",
    "WGPUComputePipelineDescriptor *",
    "WGPUDeviceDescriptor *",
    "WGPUInstanceDescriptor *",
    "WGPUInstanceExtras *",
    "WGPULimits *",
    "WGPUNativeLimits *",
    "WGPUPipelineLayoutDescriptor *",
    "WGPUQueueWorkDoneCallbackInfo *",
    "WGPURequestDeviceCallbackInfo *",
    "WGPUShaderModuleDescriptor *",
    "WGPUShaderSourceWGSL *",
)
"""What is asked for until the first kernel has run. Any other is parsed when it is."""


def parse_together(ffi: Any) -> None:
    """Puts the types where cffi keeps those that it has parsed."""
    arrays = [array.replace("[", " (*)[") for array in ARRAYS]
    functions = [function.replace("(", "(*)(", 1) for function in FUNCTIONS]
    types = ffi.typeof(f"void(*)({', '.join([*STRUCTS, *arrays, *functions])})").args
    known = ffi._parsed_types
    for name, found in zip((*STRUCTS, *ARRAYS, *FUNCTIONS), types, strict=True):
        known.setdefault(name, (found.item if name in ARRAYS else found, name in FUNCTIONS))


with without_collection():
    from wgpu.backends.wgpu_native import ffi, lib, lib_version_info

    if hasattr(ffi, "_parsed_types"):  # cffi's own, since its first release
        parse_together(ffi)

__all__ = ["ffi", "lib", "lib_version_info"]
