"""The only module that calls wgpu-native: thin, typed wrappers over the C functions of wgpu-py's library.

wgpu-py's own objects cost 20 to 70 µs a call and log validation errors instead of raising them, so this module
takes only its C library and header. Handles are cffi pointers; whoever creates one releases it. Errors arrive
in an :class:`ErrorSink`, synchronously, from the thread whose call caused them.

Importing this module loads the library (about 0.3 s), so nothing imports it before a device is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

from wgpu.backends.wgpu_native import ffi, lib

from torch_webgpu.errors import DeviceLostError

Handle = Any  # a cffi pointer; cffi has no static types

NULL = ffi.NULL
SPIN_S = 0.0002
"""How long a wait asks time and again before it blocks."""
WHOLE_SIZE = lib.WGPU_WHOLE_SIZE

# Buffer usages; BUFFER is what tensors live in.
_COPY_SRC, _COPY_DST = lib.WGPUBufferUsage_CopySrc, lib.WGPUBufferUsage_CopyDst
BUFFER = lib.WGPUBufferUsage_Storage | lib.WGPUBufferUsage_QueryResolve | _COPY_SRC | _COPY_DST
UNIFORM = lib.WGPUBufferUsage_Uniform | _COPY_DST
READBACK = lib.WGPUBufferUsage_MapRead | _COPY_DST
STAGING = lib.WGPUBufferUsage_MapWrite | _COPY_SRC

# The hot loop of the encoder calls these C functions directly.
begin_pass = lib.wgpuCommandEncoderBeginComputePass
end_pass = lib.wgpuComputePassEncoderEnd
set_pipeline = lib.wgpuComputePassEncoderSetPipeline
set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
set_immediates = lib.wgpuComputePassEncoderSetImmediates
dispatch_workgroups = lib.wgpuComputePassEncoderDispatchWorkgroups
copy_buffer = lib.wgpuCommandEncoderCopyBufferToBuffer
clear_buffer = lib.wgpuCommandEncoderClearBuffer
resolve_query_set = lib.wgpuCommandEncoderResolveQuerySet
release_pass = lib.wgpuComputePassEncoderRelease
release_encoder = lib.wgpuCommandEncoderRelease
release_bind_group = lib.wgpuBindGroupRelease
retain_pipeline = lib.wgpuComputePipelineAddRef
release_query_set = lib.wgpuQuerySetRelease
unmap = lib.wgpuBufferUnmap

_ADAPTER_TYPES = {
    lib.WGPUAdapterType_DiscreteGPU: "DiscreteGPU",
    lib.WGPUAdapterType_IntegratedGPU: "IntegratedGPU",
    lib.WGPUAdapterType_CPU: "CPU",
}
_BACKENDS = {
    lib.WGPUBackendType_Vulkan: "Vulkan",
    lib.WGPUBackendType_Metal: "Metal",
    lib.WGPUBackendType_D3D12: "D3D12",
    lib.WGPUBackendType_OpenGL: "OpenGL",
    lib.WGPUBackendType_OpenGLES: "OpenGLES",
}
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


def _text(view: Handle) -> str:
    if view.data == NULL:
        return ""
    length = view.length
    raw = ffi.string(view.data) if length == lib.WGPU_STRLEN else ffi.buffer(view.data, length)[:]
    return raw.decode(errors="replace")


class _Strings:
    """WGPUStringViews and the memory they point to, alive as long as this object."""

    def __init__(self) -> None:
        self._alive: list[Handle] = []

    def view(self, text: str) -> Handle:
        raw = text.encode()
        data = ffi.from_buffer("char[]", raw)
        self._alive.append(data)
        view = ffi.new("WGPUStringView *")
        view.data, view.length = data, len(raw)
        return view[0]


@dataclass
class ErrorSink:
    """Where the callbacks of one device leave what they were told, until a Python call collects it."""

    errors: list[tuple[str, str]] = field(default_factory=list)  # (kind, message), oldest first
    lost: str | None = None

    def take(self) -> list[tuple[str, str]]:
        """The errors since the last call, now the caller's to raise. Raises DeviceLostError when they mean that."""
        if self.errors and self.loss is not None:
            self.lost = self.loss  # whatever comes next, with or without an error of its own
            raise DeviceLostError(f"the webgpu device was lost: {self.lost}")
        errors, self.errors = self.errors, []
        return errors

    @property
    def loss(self) -> str | None:
        """Why the device is gone, as told by the library or by an error; None while it lives."""
        told = [message for _, message in self.errors if "device is lost" in message.lower()]
        return self.lost or (told[0] if told else None)


class Mark:
    """A place in a queue. ``reached`` turns true in the first poll after the work submitted before it is done."""

    def __init__(self, waiting: set[Mark]) -> None:
        self.reached = False
        self._waiting = waiting  # the library holds a bare pointer to a waiting mark
        self.handle = ffi.new_handle(self)
        waiting.add(self)

    def reach(self) -> None:
        """The library's answer."""
        self.reached = True
        self._waiting.discard(self)


_ERROR_KINDS = {
    lib.WGPUErrorType_Validation: "validation",
    lib.WGPUErrorType_OutOfMemory: "out of memory",
    lib.WGPUErrorType_Internal: "internal",
}


@ffi.callback("void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)")
def _on_error(_device: Handle, kind: int, message: Handle, sink: Handle, _unused: Handle) -> None:
    text = _text(message)
    # wgpu-native 29 reports a failed allocation as a validation error.
    name = "out of memory" if "Not enough memory left" in text else _ERROR_KINDS.get(kind, "unknown")
    ffi.from_handle(sink).errors.append((name, text))


@ffi.callback("void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)")
def _on_lost(_device: Handle, _reason: int, message: Handle, sink: Handle, _unused: Handle) -> None:
    ffi.from_handle(sink).lost = _text(message) or "no reason given"


@ffi.callback("void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
def _on_request_device(status: int, device: Handle, message: Handle, reply: Handle, _unused: Handle) -> None:
    ffi.from_handle(reply).append((status, device, _text(message)))


@ffi.callback("void(WGPUQueueWorkDoneStatus, WGPUStringView, void *, void *)")
def _on_done(_status: int, _message: Handle, mark: Handle, _unused: Handle) -> None:
    ffi.from_handle(mark).reach()


@ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")
def _on_map(status: int, message: Handle, reply: Handle, _unused: Handle) -> None:
    ffi.from_handle(reply).append((status, _text(message)))


@dataclass(frozen=True)
class Adapter:
    """One GPU as one backend offers it. ``info`` has wgpu's keys, ``limits`` its kebab-case names."""

    handle: Handle
    info: dict[str, Any]
    features: frozenset[str]
    limits: dict[str, int]


@cache
def _instance(backends: int) -> Handle:
    extras = ffi.new("WGPUInstanceExtras *")
    extras.chain.sType = lib.WGPUSType_InstanceExtras
    extras.backends = backends
    descriptor = ffi.new("WGPUInstanceDescriptor *")
    descriptor.nextInChain = ffi.addressof(extras, "chain")
    return lib.wgpuCreateInstance(descriptor)


def enumerate_adapters() -> list[Adapter]:
    """The adapters of the native backends; those of OpenGL only when there is no other.

    OpenGL lists the same GPUs again, with fewer features, and initialising it writes to the terminal on some systems.
    """
    for backends in (_PRIMARY_BACKENDS, _SECONDARY_BACKENDS):
        instance = _instance(backends)
        count = lib.wgpuInstanceEnumerateAdapters(instance, NULL, NULL)
        if count:
            handles = ffi.new("WGPUAdapter[]", count)
            lib.wgpuInstanceEnumerateAdapters(instance, NULL, handles)
            return [_describe(handle) for handle in handles]
    return []


def _describe(adapter: Handle) -> Adapter:
    raw = ffi.new("WGPUAdapterInfo *")
    lib.wgpuAdapterGetInfo(adapter, raw)
    info = {name: _text(getattr(raw, name)) for name in ("vendor", "architecture", "device", "description")}
    info |= {
        "vendor_id": raw.vendorID,
        "device_id": raw.deviceID,
        "adapter_type": _ADAPTER_TYPES.get(raw.adapterType, "Unknown"),
        "backend_type": _BACKENDS.get(raw.backendType, "Unknown"),
        "subgroup_min_size": raw.subgroupMinSize,
        "subgroup_max_size": raw.subgroupMaxSize,
    }
    lib.wgpuAdapterInfoFreeMembers(raw[0])
    features = frozenset(name for name, code in FEATURES.items() if lib.wgpuAdapterHasFeature(adapter, code))
    limits = _adapter_limits(adapter)[0]
    names = (name for name in dir(limits) if name != "nextInChain")
    return Adapter(adapter, info, features, {_kebab(name): getattr(limits, name) for name in names})


def _kebab(name: str) -> str:
    """``maxComputeWorkgroupSizeX`` -> ``max-compute-workgroup-size-x``, as wgpu-py spells limits."""
    return (
        "".join(f"-{c.lower()}" if c.isupper() else c for c in name)
        .replace("1-d", "-1d")
        .replace("2-d", "-2d")
        .replace("3-d", "-3d")
    )


def _adapter_limits(adapter: Handle) -> tuple[Handle, Handle]:
    """The WGPULimits of an adapter and the native struct chained to it, which the caller keeps alive."""
    native = ffi.new("WGPUNativeLimits *")
    native.chain.sType = lib.WGPUSType_NativeLimits
    limits = ffi.new("WGPULimits *")
    limits.nextInChain = ffi.addressof(native, "chain")
    lib.wgpuAdapterGetLimits(adapter, limits)
    return limits, native


class NativeDevice:
    """A WGPUDevice and its queue, with every feature and limit of the adapter that this package uses."""

    def __init__(self, adapter: Adapter) -> None:
        self.sink = ErrorSink()
        self._sink_handle = ffi.new_handle(self.sink)
        self._marks: set[Mark] = set()
        self._empty_pass = ffi.new("WGPUComputePassDescriptor *")
        self._empty_encoder = ffi.new("WGPUCommandEncoderDescriptor *")
        self._empty_commands = ffi.new("WGPUCommandBufferDescriptor *")
        self._one_buffer = ffi.new("WGPUCommandBuffer[1]")
        self.handle = self._request(adapter)
        self.queue = lib.wgpuDeviceGetQueue(self.handle)
        self.submissions = 0

    def _request(self, adapter: Adapter) -> Handle:
        limits, _native = _adapter_limits(adapter.handle)
        codes = ffi.new("WGPUFeatureName[]", [FEATURES[name] for name in sorted(adapter.features)])
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(adapter.features), codes
        descriptor.requiredLimits = limits
        descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
        descriptor.deviceLostCallbackInfo.callback = _on_lost
        descriptor.deviceLostCallbackInfo.userdata1 = self._sink_handle
        descriptor.uncapturedErrorCallbackInfo.callback = _on_error
        descriptor.uncapturedErrorCallbackInfo.userdata1 = self._sink_handle
        reply: list[tuple[int, Handle, str]] = []
        reply_handle = ffi.new_handle(reply)
        callback = ffi.new("WGPURequestDeviceCallbackInfo *")
        callback.mode = lib.WGPUCallbackMode_AllowSpontaneous
        callback.callback, callback.userdata1 = _on_request_device, reply_handle
        lib.wgpuAdapterRequestDevice(adapter.handle, descriptor, callback[0])
        status, device, message = reply[0]  # wgpu-native answers before the call returns
        if status != lib.WGPURequestDeviceStatus_Success:
            raise RuntimeError(message)
        return device

    # Buffers

    def create_buffer(self, size_bytes: int, usage: int, mapped: bool = False) -> Handle:
        """A new WGPUBuffer; a refusal is in the sink."""
        descriptor = ffi.new("WGPUBufferDescriptor *")
        descriptor.usage, descriptor.size, descriptor.mappedAtCreation = usage, size_bytes, mapped
        return lib.wgpuDeviceCreateBuffer(self.handle, descriptor)

    # Frees the memory once submitted work and bind groups that use it are gone. Never destroy a buffer instead: a
    # submission that names a destroyed one aborts the process.
    release_buffer = staticmethod(lib.wgpuBufferRelease)

    def write_buffer(self, buffer: Handle, offset: int, data: Any) -> None:
        """Copies whole words of host memory in, ordered before the next submission."""
        view = ffi.from_buffer(data)
        lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, view, len(view))

    def map(self, buffer: Handle, size_bytes: int, write: bool = False) -> Any:
        """Waits until the buffer is mapped; its bytes as a writable buffer object, valid until :func:`unmap`."""
        reply: list[tuple[int, str]] = []
        reply_handle = ffi.new_handle(reply)
        callback = ffi.new("WGPUBufferMapCallbackInfo *")
        callback.mode = lib.WGPUCallbackMode_AllowSpontaneous
        callback.callback, callback.userdata1 = _on_map, reply_handle
        mode = lib.WGPUMapMode_Write if write else lib.WGPUMapMode_Read
        lib.wgpuBufferMapAsync(buffer, mode, 0, size_bytes, callback[0])
        # A blocking wait wakes up some 30 microseconds late: look again and again at first.
        give_up = perf_counter() + SPIN_S
        while not reply:
            self.poll(wait=perf_counter() > give_up)
        status, message = reply[0]
        if status != lib.WGPUMapAsyncStatus_Success:
            self.sink.errors.append(("internal", f"mapping a staging buffer failed: {message or status}"))
            return None
        return self.mapped(buffer, size_bytes, write)

    @staticmethod
    def mapped(buffer: Handle, size_bytes: int, write: bool = True) -> Any:
        """The bytes of a mapped buffer."""
        get = lib.wgpuBufferGetMappedRange if write else lib.wgpuBufferGetConstMappedRange
        return ffi.buffer(ffi.cast("char *", get(buffer, 0, size_bytes)), size_bytes)

    # Pipelines

    def create_shader(self, source: str, label: str, trusted: bool) -> Handle:
        """A shader module; a compile error is in the sink. A trusted one has no bounds checks and may loop forever."""
        strings = _Strings()
        wgsl = ffi.new("WGPUShaderSourceWGSL *")
        wgsl.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        wgsl.code = strings.view(source)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain, descriptor.label = ffi.addressof(wgsl, "chain"), strings.view(label)
        if trusted:
            return lib.wgpuDeviceCreateShaderModuleTrusted(self.handle, descriptor, 0)
        return lib.wgpuDeviceCreateShaderModule(self.handle, descriptor)

    def create_layout(self, writable: Sequence[bool], uniform: bool) -> Handle:
        """The layout of bind group 0: a storage buffer a flag, then perhaps a uniform buffer with a dynamic offset."""
        entries = ffi.new("WGPUBindGroupLayoutEntry[]", len(writable) + uniform)
        for index, entry in enumerate(entries):
            entry.binding, entry.visibility = index, lib.WGPUShaderStage_Compute
            if index == len(writable):
                entry.buffer.type, entry.buffer.hasDynamicOffset = lib.WGPUBufferBindingType_Uniform, True
            elif writable[index]:
                entry.buffer.type = lib.WGPUBufferBindingType_Storage
            else:
                entry.buffer.type = lib.WGPUBufferBindingType_ReadOnlyStorage
        descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
        descriptor.entryCount, descriptor.entries = len(entries), entries
        return lib.wgpuDeviceCreateBindGroupLayout(self.handle, descriptor)

    def create_pipeline(self, shader: Handle, layout: Handle, immediate_bytes: int, label: str) -> Handle:
        """A compute pipeline of the module's ``main``; an error is in the sink."""
        strings = _Strings()
        layouts = ffi.new("WGPUBindGroupLayout[1]", [layout])
        layout_descriptor = ffi.new("WGPUPipelineLayoutDescriptor *")
        layout_descriptor.bindGroupLayoutCount, layout_descriptor.bindGroupLayouts = 1, layouts
        layout_descriptor.immediateSize = immediate_bytes
        pipeline_layout = lib.wgpuDeviceCreatePipelineLayout(self.handle, layout_descriptor)
        descriptor = ffi.new("WGPUComputePipelineDescriptor *")
        descriptor.label, descriptor.layout = strings.view(label), pipeline_layout
        descriptor.compute.module, descriptor.compute.entryPoint = shader, strings.view("main")
        pipeline = lib.wgpuDeviceCreateComputePipeline(self.handle, descriptor)
        lib.wgpuPipelineLayoutRelease(pipeline_layout)
        return pipeline

    def create_bind_group(self, layout: Handle, ranges: Sequence[tuple[Handle, int, int]]) -> Handle:
        """Bind group 0 from ``(buffer, offset, size)`` in binding order; an error is in the sink."""
        entries = ffi.new("WGPUBindGroupEntry[]", len(ranges))
        for index, (entry, (buffer, offset, size)) in enumerate(zip(entries, ranges, strict=True)):
            entry.binding, entry.buffer, entry.offset, entry.size = index, buffer, offset, size
        descriptor = ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(ranges), entries
        return lib.wgpuDeviceCreateBindGroup(self.handle, descriptor)

    release_shader = staticmethod(lib.wgpuShaderModuleRelease)
    release_pipeline = staticmethod(lib.wgpuComputePipelineRelease)
    release_layout = staticmethod(lib.wgpuBindGroupLayoutRelease)

    # Commands

    def create_encoder(self) -> Handle:
        return lib.wgpuDeviceCreateCommandEncoder(self.handle, self._empty_encoder)

    def begin_pass(self, encoder: Handle) -> Handle:
        return begin_pass(encoder, self._empty_pass)

    @staticmethod
    def begin_timed_pass(encoder: Handle, *, query_set: Handle, first_query: int) -> Handle:
        """A compute pass that writes its begin and end times to ``first_query`` and the next one."""
        writes = ffi.new("WGPUPassTimestampWrites *")
        writes.querySet, writes.beginningOfPassWriteIndex = query_set, first_query
        writes.endOfPassWriteIndex = first_query + 1
        descriptor = ffi.new("WGPUComputePassDescriptor *")
        descriptor.timestampWrites = writes
        return begin_pass(encoder, descriptor)

    def create_timestamps(self, count: int) -> Handle:
        descriptor = ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = lib.WGPUQueryType_Timestamp, count
        return lib.wgpuDeviceCreateQuerySet(self.handle, descriptor)

    def timestamp_period_ns(self) -> float:
        return lib.wgpuQueueGetTimestampPeriod(self.queue)

    def run(self, encoder: Handle) -> bool:
        """Submits what was encoded, after pending writes; False, with the reason in the sink, when it is invalid.

        wgpu-native aborts the process on an error in wgpuQueueSubmit, so nothing with a known error may reach it; a
        device that was lost shows when the encoder is finished.
        """
        commands = lib.wgpuCommandEncoderFinish(encoder, self._empty_commands)
        release_encoder(encoder)
        valid = not self.sink.errors and self.sink.lost is None
        if valid:
            self._one_buffer[0] = commands
            lib.wgpuQueueSubmit(self.queue, 1, self._one_buffer)
            self.submissions += 1
        lib.wgpuCommandBufferRelease(commands)
        return valid

    def flush_writes(self) -> bool:
        """Submits pending :meth:`write_buffer` calls on their own, which bounds the library's staging memory."""
        return self.run(self.create_encoder())

    def poll(self, wait: bool) -> None:
        """Runs the callbacks that are due; with ``wait``, after all submitted work is done."""
        lib.wgpuDevicePoll(self.handle, wait, NULL)

    def mark(self) -> Mark:
        """A mark after everything submitted so far."""
        mark = Mark(self._marks)
        callback = ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        callback.mode = lib.WGPUCallbackMode_AllowSpontaneous
        callback.callback, callback.userdata1 = _on_done, mark.handle
        lib.wgpuQueueOnSubmittedWorkDone(self.queue, callback[0])
        return mark

    def destroy(self) -> None:
        """Makes the adapter give up the device, as a driver reset would: it is lost from now on.

        The library tells it when it is next polled and everything submitted is done.
        """
        lib.wgpuDeviceDestroy(self.handle)
        self.sink.lost = self.sink.lost or "it was destroyed"

    def close(self) -> None:
        """Destroys and releases the device. Nothing may use it or what it created afterwards."""
        self.destroy()
        lib.wgpuQueueRelease(self.queue)
        lib.wgpuDeviceRelease(self.handle)


def host_memory(data: bytes | bytearray) -> Handle:
    """A pointer to ``data`` that keeps it alive, for calls that are made often."""
    return ffi.from_buffer("char[]", data)


def offsets(count: int) -> Handle:
    """A ``uint32_t`` array for dynamic offsets."""
    return ffi.new("uint32_t[]", count)
