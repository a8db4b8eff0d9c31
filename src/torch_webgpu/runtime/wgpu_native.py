"""wgpu-native, the WebGPU of Firefox, from wgpu-py's wheels: the implementation that is always there.

Importing this module loads the library (about 0.3 s), so nothing imports it before a device is asked for.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Literal

from .dxc import dxcompiler
from .implementation import Adapter, Handle
from .webgpu_h import CDevice, Library, limits_by_name
from .wgpu_header import ffi, lib, lib_version_info

# WGPUInstanceBackend_Primary (Vulkan, Metal, D3D12, browser) and _Secondary: cffi can't read constant expressions.
_PRIMARY_BACKENDS, _SECONDARY_BACKENDS = 0b101101, 0b10

# The features that kernels or the runtime use, under wgpu's names. cooperative-matrix is absent on purpose:
# wgpu-native 29 lists it and then refuses the device that asks for it.
FEATURES = {
    "shader-f16": lib.WGPUFeatureName_ShaderF16,
    "shader-f64": lib.WGPUNativeFeature_ShaderF64,
    "shader-i16": lib.WGPUNativeFeature_ShaderI16,
    "shader-int64": lib.WGPUNativeFeature_ShaderInt64,
    "shader-int64-atomic-min-max": lib.WGPUNativeFeature_ShaderInt64AtomicMinMax,
    "shader-int64-atomic-all-ops": lib.WGPUNativeFeature_ShaderInt64AtomicAllOps,
    "shader-float32-atomic": lib.WGPUNativeFeature_ShaderFloat32Atomic,
    "subgroup": lib.WGPUNativeFeature_Subgroup,
    "subgroup-barrier": lib.WGPUNativeFeature_SubgroupBarrier,
    "immediates": lib.WGPUNativeFeature_Immediates,
    "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
    "timestamp-query-inside-encoders": lib.WGPUNativeFeature_TimestampQueryInsideEncoders,
    "timestamp-query-inside-passes": lib.WGPUNativeFeature_TimestampQueryInsidePasses,
}

_library = Library(ffi, lib)


@cache
def _instance(backends: int, dxc: Path | None) -> Handle:
    extras = ffi.new("WGPUInstanceExtras *")
    extras.chain.sType = lib.WGPUSType_InstanceExtras
    extras.backends = backends
    if dxc is not None:
        path = str(dxc).encode()
        kept = ffi.new("char[]", path)
        extras.dx12ShaderCompiler = lib.WGPUDx12Compiler_Dxc
        extras.dxcPath.data, extras.dxcPath.length = kept, len(path)
        extras.dxcMaxShaderModel = lib.WGPUDxcMaxShaderModel_V6_6  # 6.2 has f16, 6.6 atomics of 64 bits
    descriptor = ffi.new("WGPUInstanceDescriptor *")
    descriptor.nextInChain = ffi.addressof(extras, "chain")
    return lib.wgpuCreateInstance(descriptor)


def _limits(adapter: Handle) -> tuple[Handle, Handle]:
    """The WGPULimits of an adapter and the native struct chained to it, which the caller keeps alive."""
    native = ffi.new("WGPUNativeLimits *")
    native.chain.sType = lib.WGPUSType_NativeLimits
    limits = ffi.new("WGPULimits *")
    limits.nextInChain = ffi.addressof(native, "chain")
    lib.wgpuAdapterGetLimits(adapter, limits)
    return limits, native


class WgpuNative:
    """The library."""

    name = "wgpu"
    dialect: Literal["naga", "tint"] = "naga"

    def version(self) -> str:
        return ".".join(map(str, lib_version_info))

    def adapters(self) -> list[Adapter]:
        """The adapters of the native backends; those of OpenGL only when there is no other.

        OpenGL lists the same GPUs again, with fewer features, and initialising it writes to the terminal on some
        systems.
        """
        dxc = dxcompiler()
        for backends in (_PRIMARY_BACKENDS, _SECONDARY_BACKENDS):
            adapters = self._listed(_instance(backends, dxc))
            if dxc is not None and not any(adapter.info["backend_type"] == "D3D12" for adapter in adapters):
                # Where the compiler cannot be loaded, the library leaves out Direct3D 12: too old, or of another CPU.
                adapters = self._listed(_instance(backends, None))
            if adapters:
                return adapters
        return []

    def _listed(self, instance: Handle) -> list[Adapter]:
        count = lib.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, ffi.NULL)
        if not count:
            return []
        handles = ffi.new("WGPUAdapter[]", count)
        lib.wgpuInstanceEnumerateAdapters(instance, ffi.NULL, handles)
        return [self._describe(handle) for handle in handles]

    def _describe(self, handle: Handle) -> Adapter:
        limits, _native = _limits(handle)
        return Adapter(
            self, handle, _library.describe(handle), _library.features(handle, FEATURES), limits_by_name(limits)
        )

    def open(self, adapter: Adapter) -> WgpuDevice:
        return WgpuDevice(_library, adapter)


class WgpuDevice(CDevice):
    """A device of wgpu-native."""

    callback_mode = lib.WGPUCallbackMode_AllowSpontaneous

    def __init__(self, library: Library, adapter: Adapter) -> None:
        super().__init__(library, adapter)
        self._ask = partial(lib.wgpuDevicePoll, self.handle, False, ffi.NULL)

    def _require(self, descriptor: Handle, adapter: Adapter) -> object:
        limits, native = _limits(adapter.handle)
        codes = ffi.new("WGPUFeatureName[]", [FEATURES[name] for name in sorted(adapter.features)])
        descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(adapter.features), codes
        descriptor.requiredLimits = limits
        return limits, native, codes

    def _shader(self, descriptor: Handle, trusted: bool) -> Handle:
        if trusted:  # no bounds checks, and loops may be endless
            return lib.wgpuDeviceCreateShaderModuleTrusted(self.handle, descriptor, 0)
        return lib.wgpuDeviceCreateShaderModule(self.handle, descriptor)

    def timestamp_period_ns(self) -> float:
        return lib.wgpuQueueGetTimestampPeriod(self.queue)

    def _block(self, future: Handle) -> None:
        self.poll(wait=True)

    def poll(self, wait: bool) -> None:
        lib.wgpuDevicePoll(self.handle, wait, ffi.NULL)


IMPLEMENTATION = WgpuNative()
