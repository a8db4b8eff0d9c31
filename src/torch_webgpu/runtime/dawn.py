"""Dawn, the WebGPU of Chrome, from wgpudawn's wheels: tensor cores, lean submissions, the browser's own compiler.

https://dawn.googlesource.com/dawn, https://pypi.org/project/wgpudawn. Devices are opened without Dawn's bounds checks
and without zeroed workgroup memory, which cost half of a matrix product's speed: this package's kernels prove their
indices and read what they wrote. In modules that are not trusted, the linker and ``wgsl/indices.py`` bound the indices.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from time import perf_counter
from typing import Literal

from wgpudawn import __version__
from wgpudawn._lib import dawn_version, ffi, lib

from torch_webgpu.target import MatrixConfig

from .implementation import Adapter, Handle
from .webgpu_h import SPIN_S, CDevice, CMark, Library, limits_by_name

FEATURES = {
    "shader-f16": lib.WGPUFeatureName_ShaderF16,
    "subgroup": lib.WGPUFeatureName_Subgroups,
    "subgroup-size-control": lib.WGPUFeatureName_SubgroupSizeControl,
    "subgroup-matrix": lib.WGPUFeatureName_ChromiumExperimentalSubgroupMatrix,
    "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
    "host-mapped-pointer": lib.WGPUFeatureName_HostMappedPointer,
    "implicit-device-synchronization": lib.WGPUFeatureName_ImplicitDeviceSynchronization,
}
# Dawn's toggles, by what they are a property of.
_INSTANCE_TOGGLES = ("allow_unsafe_apis",)
_ADAPTER_TOGGLES = ("vulkan_enable_f16_on_nvidia", "use_vulkan_memory_model")
_FAST = ("disable_robustness", "disable_workgroup_init")
_EXACT = ("timestamp_quantization",)  # switched off: whole nanoseconds
_BACKENDS = ("Metal", "D3D12", "Vulkan")
_COMPONENTS = {
    getattr(lib, f"WGPUSubgroupMatrixComponentType_{name.upper()}"): name
    for name in ("f32", "f16", "u32", "i32", "u8", "i8")
}
_OF_DAWN = re.compile(rb"^(?:Warning|Error): .*\n?(?:^[ ]+(?:- |at ).*\n?)*\n?", re.MULTILINE)
"""A message of Dawn's: what it is, and the lines that say where it came from."""
_BLOCK_NS = 20_000_000
"""The longest that one wait sleeps."""

_log = logging.getLogger("torch_webgpu")
_library = Library(ffi, lib)
_imported: set[Handle] = set()
"""Handles of host memory that buffers are made of."""


@ffi.callback("void(void *)")
def _on_disposed(memory: Handle) -> None:
    """Dawn and the GPU use it no more."""
    _imported.discard(memory)


class _Toggles:
    """A WGPUDawnTogglesDescriptor, to be chained to another descriptor, and what it points to."""

    def __init__(self, on: Sequence[str], off: Sequence[str] = ()) -> None:
        self._names = [[ffi.new("char[]", name.encode()) for name in names] for names in (on, off)]
        self._lists = [ffi.new("char *[]", names) for names in self._names]
        self._descriptor = ffi.new("WGPUDawnTogglesDescriptor *")
        self._descriptor.chain.sType = lib.WGPUSType_DawnTogglesDescriptor
        self._descriptor.enabledToggleCount, self._descriptor.disabledToggleCount = len(on), len(off)
        self._descriptor.enabledToggles, self._descriptor.disabledToggles = self._lists

    @property
    def chain(self) -> Handle:
        return ffi.addressof(self._descriptor, "chain")


@cache
def _instance() -> Handle:
    toggles = _Toggles(_INSTANCE_TOGGLES)
    features = ffi.new(
        "WGPUInstanceFeatureName[]",
        [lib.WGPUInstanceFeatureName_TimedWaitAny, lib.WGPUInstanceFeatureName_MultipleDevicesPerAdapter],
    )
    descriptor = ffi.new("WGPUInstanceDescriptor *")
    descriptor.nextInChain = toggles.chain
    descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(features), features
    return lib.wgpuCreateInstance(descriptor)


def _limits(adapter: Handle) -> Handle:
    limits = ffi.new("WGPULimits *")
    lib.wgpuAdapterGetLimits(adapter, limits)
    return limits


def _matrices(adapter: Handle) -> tuple[MatrixConfig, ...]:
    properties = ffi.new("WGPUAdapterPropertiesSubgroupMatrixConfigs *")
    properties.chain.sType = lib.WGPUSType_AdapterPropertiesSubgroupMatrixConfigs
    info = ffi.new("WGPUAdapterInfo *")
    info.nextInChain = ffi.addressof(properties, "chain")
    lib.wgpuAdapterGetInfo(adapter, info)
    configs = tuple(
        MatrixConfig(
            _COMPONENTS[config.componentType], _COMPONENTS[config.resultComponentType], config.M, config.N, config.K,
            config.maxSubgroupSize,
        )
        for config in (properties.configs[k] for k in range(properties.configCount))
    )  # fmt: skip
    lib.wgpuAdapterInfoFreeMembers(info[0])
    lib.wgpuAdapterPropertiesSubgroupMatrixConfigsFreeMembers(properties[0])
    return configs


@contextmanager
def _captured_stderr() -> Iterator[None]:
    """Into the log instead: Dawn writes to the file of stderr why it refuses an adapter, and cannot be told not to.

    What threads and children of the program write meanwhile comes to stderr after it.
    """
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        text = said.read()
        if ours := b"".join(_OF_DAWN.findall(text)).decode(errors="replace").strip():
            _log.info("%s", ours)
        others = _OF_DAWN.sub(b"", text)
        if others.strip():
            os.write(2, others)


class Dawn:
    """The library."""

    name = "dawn"
    dialect: Literal["naga", "tint"] = "tint"

    def version(self) -> str:
        return f"{dawn_version} (wgpudawn {__version__})"

    def adapters(self) -> list[Adapter]:
        """The most and the least powerful GPU of each native backend: Dawn's C interface does not list them all."""
        preferences = lib.WGPUPowerPreference_HighPerformance, lib.WGPUPowerPreference_LowPower
        by_info: dict[str, Adapter] = {}
        with _captured_stderr():
            for backend, preference in product(_BACKENDS, preferences):
                handle = _request_adapter(getattr(lib, f"WGPUBackendType_{backend}"), preference)
                if handle is not None:
                    adapter = self._describe(handle)
                    by_info.setdefault(repr(adapter.info), adapter)
        return list(by_info.values())

    def null(self) -> Adapter:
        """An adapter that validates everything, shaders too, and computes nothing: for tests anywhere."""
        return self._describe(_request_adapter(lib.WGPUBackendType_Null, lib.WGPUPowerPreference_HighPerformance))

    def _describe(self, handle: Handle) -> Adapter:
        limits = limits_by_name(_limits(handle))
        features = _library.features(handle, FEATURES)
        if limits["max-immediate-size"]:
            features |= {"immediates"}
        matrices = _matrices(handle) if "subgroup-matrix" in features else ()
        return Adapter(self, handle, _library.describe(handle), features, limits, matrices)

    def open(self, adapter: Adapter) -> DawnDevice:
        return DawnDevice(_library, adapter)


def _request_adapter(backend: int, preference: int) -> Handle | None:
    options = ffi.new("WGPURequestAdapterOptions *")
    toggles = _Toggles(_ADAPTER_TOGGLES)
    options.nextInChain = toggles.chain
    options.backendType, options.powerPreference = backend, preference
    reply: list[tuple[int, Handle, str]] = []
    reply_handle = ffi.new_handle(reply)
    callback = ffi.new("WGPURequestAdapterCallbackInfo *")
    callback.mode = lib.WGPUCallbackMode_AllowSpontaneous
    callback.callback, callback.userdata1 = _library.on_adapter, reply_handle
    lib.wgpuInstanceRequestAdapter(_instance(), options, callback[0])
    status, handle, _ = reply[0]  # Dawn answers before the call returns
    return handle if status == lib.WGPURequestAdapterStatus_Success else None


class DawnDevice(CDevice):
    """A device of Dawn's."""

    # Dawn calls back when it is asked to, from the thread that asks.
    callback_mode = lib.WGPUCallbackMode_AllowProcessEvents

    def __init__(self, library: Library, adapter: Adapter) -> None:
        self._instance = _instance()
        self._ask = partial(lib.wgpuInstanceProcessEvents, self._instance)
        super().__init__(library, adapter)

    def _require(self, descriptor: Handle, adapter: Adapter) -> object:
        toggles = _Toggles(_FAST, _EXACT)
        limits = _limits(adapter.handle)
        wanted = [FEATURES[name] for name in sorted(adapter.features & FEATURES.keys())]
        codes = ffi.new("WGPUFeatureName[]", wanted)
        descriptor.nextInChain = toggles.chain
        descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(wanted), codes
        descriptor.requiredLimits = limits
        return toggles, limits, codes

    def timestamp_period_ns(self) -> float:
        return 1.0

    def import_host_memory(self, memory: memoryview, usage: int) -> Handle:
        pointer = ffi.from_buffer(memory, require_writable=True)
        kept = ffi.new_handle(pointer)
        mapped = ffi.new("WGPUBufferHostMappedPointer *")
        mapped.chain.sType = lib.WGPUSType_BufferHostMappedPointer
        mapped.pointer, mapped.disposeCallback, mapped.userdata = pointer, _on_disposed, kept
        descriptor = ffi.new("WGPUBufferDescriptor *")
        descriptor.nextInChain = ffi.addressof(mapped, "chain")
        descriptor.usage, descriptor.size = usage, len(pointer)
        _imported.add(kept)
        handle = lib.wgpuDeviceCreateBuffer(self.handle, descriptor)
        if self.sink.errors:  # it is called for buffers alone that were made
            _imported.discard(kept)
        return handle

    def _block(self, future: Handle) -> None:
        waiting = ffi.new("WGPUFutureWaitInfo *")
        waiting.future = future
        lib.wgpuInstanceWaitAny(self._instance, 1, waiting, _BLOCK_NS)

    def poll(self, wait: bool) -> None:
        self._ask()
        if not wait:
            return
        mark = CMark(ffi, self._marks)
        future = self._after_submitted(mark)
        ask, give_up = self._ask, perf_counter() + SPIN_S
        while not mark.reached:
            if perf_counter() > give_up:
                self._block(future)
            else:
                ask()


IMPLEMENTATION = Dawn()
