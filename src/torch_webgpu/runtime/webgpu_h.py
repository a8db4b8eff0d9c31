"""What every C library with the standard ``webgpu.h`` does alike, through cffi.

https://github.com/webgpu-native/webgpu-headers. wgpu-py's and wgpudawn's own objects cost 20 to 70 µs a call and log
validation errors instead of raising them, so this package takes only their libraries and headers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from .implementation import Adapter, ErrorSink, Handle, Mark

SPIN_S = 0.0002
"""How long a wait asks time and again before it blocks: a blocking one wakes up some 30 µs late."""

ADAPTER_TYPES = {"DiscreteGPU": "DiscreteGPU", "IntegratedGPU": "IntegratedGPU", "CPU": "CPU"}
BACKENDS = ("Vulkan", "Metal", "D3D12", "OpenGL", "OpenGLES", "Null")
_INFO_TEXTS = ("vendor", "architecture", "device", "description")


class Library:
    """A cffi library and its declarations, with the callbacks that all its devices share.

    A callback's ``userdata1`` is a handle of the Python object that it leaves word in.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi, self.lib = ffi, lib
        kinds = ("Validation", "OutOfMemory", "Internal")
        names = ("validation", "out of memory", "internal")
        self._error_kinds = {
            getattr(lib, f"WGPUErrorType_{kind}"): name for kind, name in zip(kinds, names, strict=True)
        }
        self.map_success = lib.WGPUMapAsyncStatus_Success
        declare = ffi.callback
        word = "WGPUStringView, void *, void *"
        self.on_error = declare(f"void(WGPUDevice const *, WGPUErrorType, {word})", self._on_error)
        self.on_lost = declare(f"void(WGPUDevice const *, WGPUDeviceLostReason, {word})", self._on_lost)
        self.on_device = declare(f"void(WGPURequestDeviceStatus, WGPUDevice, {word})", self._on_answer)
        self.on_adapter = declare(f"void(WGPURequestAdapterStatus, WGPUAdapter, {word})", self._on_answer)
        self.on_done = declare(f"void(WGPUQueueWorkDoneStatus, {word})", self._on_done)
        self.on_map = declare(f"void(WGPUMapAsyncStatus, {word})", self._on_map)

    def text(self, view: Handle) -> str:
        """A WGPUStringView's text."""
        length = view.length
        if not length or view.data == self.ffi.NULL:
            return ""
        whole = length == self.lib.WGPU_STRLEN
        raw = self.ffi.string(view.data) if whole else self.ffi.buffer(view.data, length)[:]
        return raw.decode(errors="replace")

    def describe(self, adapter: Handle) -> dict[str, Any]:
        """``Adapter.info``."""
        ffi, lib = self.ffi, self.lib
        raw = ffi.new("WGPUAdapterInfo *")
        lib.wgpuAdapterGetInfo(adapter, raw)
        types = {getattr(lib, f"WGPUAdapterType_{name}"): name for name in ADAPTER_TYPES}
        backends = {getattr(lib, f"WGPUBackendType_{name}"): name for name in BACKENDS}
        info: dict[str, Any] = {name: self.text(getattr(raw, name)) for name in _INFO_TEXTS}
        info |= {
            "vendor_id": raw.vendorID,
            "device_id": raw.deviceID,
            "adapter_type": types.get(raw.adapterType, "Unknown"),
            "backend_type": backends.get(raw.backendType, "Unknown"),
            "subgroup_min_size": raw.subgroupMinSize,
            "subgroup_max_size": raw.subgroupMaxSize,
        }
        lib.wgpuAdapterInfoFreeMembers(raw[0])
        return info

    def features(self, adapter: Handle, codes: dict[str, int]) -> frozenset[str]:
        """Those that the adapter has."""
        return frozenset(name for name, code in codes.items() if self.lib.wgpuAdapterHasFeature(adapter, code))

    def _on_error(self, _device: Handle, kind: int, message: Handle, sink: Handle, _unused: Handle) -> None:
        text = self.text(message)
        # wgpu-native 29 reports a failed allocation as a validation error.
        name = "out of memory" if "Not enough memory left" in text else self._error_kinds.get(kind, "unknown")
        self.ffi.from_handle(sink).errors.append((name, text))

    def _on_lost(self, _device: Handle, _reason: int, message: Handle, sink: Handle, _unused: Handle) -> None:
        self.ffi.from_handle(sink).lost = self.text(message) or "no reason given"

    def _on_answer(self, status: int, answer: Handle, message: Handle, reply: Handle, _unused: Handle) -> None:
        self.ffi.from_handle(reply).append((status, answer, self.text(message)))

    def _on_done(self, _status: int, _message: Handle, mark: Handle, _unused: Handle) -> None:
        self.ffi.from_handle(mark).reach()

    def _on_map(self, status: int, message: Handle, reply: Handle, _unused: Handle) -> None:
        text = "" if status == self.map_success else self.text(message)
        self.ffi.from_handle(reply).append((status, text))


def limits_by_name(limits: Handle) -> dict[str, int]:
    """WGPULimits under the names wgpu-py gives them: ``maxComputeWorkgroupSizeX`` is max-compute-workgroup-size-x."""
    return {_kebab(name): getattr(limits, name) for name in dir(limits) if name != "nextInChain"}


def _kebab(name: str) -> str:
    spelled = "".join(f"-{c.lower()}" if c.isupper() else c for c in name)
    return spelled.replace("1-d", "-1d").replace("2-d", "-2d").replace("3-d", "-3d")


class Strings:
    """WGPUStringViews and the memory they point to, alive as long as this object."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        self._alive: list[Handle] = []

    def view(self, text: str) -> Handle:
        """A view of a text."""
        raw = text.encode()
        data = self._ffi.from_buffer("char[]", raw)
        self._alive.append(data)
        view = self._ffi.new("WGPUStringView *")
        view.data, view.length = data, len(raw)
        return view[0]


class CMark(Mark):
    """A mark that a library holds a bare pointer to until it is reached."""

    def __init__(self, ffi: Any, waiting: set[CMark]) -> None:
        super().__init__()
        self._waiting = waiting
        self.handle = ffi.new_handle(self)
        waiting.add(self)

    def reach(self) -> None:
        """The library's answer."""
        self.reached = True
        self._waiting.discard(self)
        self.handle = None  # it names this object: nothing but a collection would free the two


class CDevice:
    """A WGPUDevice and its queue: the part of ``NativeDevice`` that is the same in every library."""

    callback_mode: int
    """When the library may call back."""
    _ask: Callable[[], object]
    """Runs the callbacks that are due."""

    def __init__(self, library: Library, adapter: Adapter) -> None:
        ffi, lib = library.ffi, library.lib
        self.library, self.ffi, self.lib = library, ffi, lib
        self.null = ffi.NULL
        self.sink = ErrorSink()
        self.submissions = 0
        self._sink_handle = ffi.new_handle(self.sink)
        self._marks: set[CMark] = set()
        self._map_reply: list[tuple[int, str]] = []  # one buffer is mapped at a time
        self._map_reply_handle = ffi.new_handle(self._map_reply)
        self._map_callback = ffi.new("WGPUBufferMapCallbackInfo *")
        self._map_callback.mode = self.callback_mode
        self._map_callback.callback, self._map_callback.userdata1 = library.on_map, self._map_reply_handle
        self._map_info = self._map_callback[0]
        self._map_async = lib.wgpuBufferMapAsync
        self._for_reading = lib.WGPUMapMode_Read, lib.wgpuBufferGetConstMappedRange
        self._for_writing = lib.WGPUMapMode_Write, lib.wgpuBufferGetMappedRange
        self._done_callback = ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        self._done_callback.mode, self._done_callback.callback = self.callback_mode, library.on_done
        self._one_buffer = ffi.new("WGPUCommandBuffer[1]")
        self.set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        self.set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        self.set_immediates = lib.wgpuComputePassEncoderSetImmediates
        self.dispatch_workgroups = lib.wgpuComputePassEncoderDispatchWorkgroups
        self.end_pass = lib.wgpuComputePassEncoderEnd
        self.release_pass = lib.wgpuComputePassEncoderRelease
        self._begin_pass = lib.wgpuCommandEncoderBeginComputePass
        self._finish = lib.wgpuCommandEncoderFinish
        self._submit, self._release_commands = lib.wgpuQueueSubmit, lib.wgpuCommandBufferRelease
        self.copy_buffer = lib.wgpuCommandEncoderCopyBufferToBuffer
        self.clear_buffer = lib.wgpuCommandEncoderClearBuffer
        self.resolve_query_set = lib.wgpuCommandEncoderResolveQuerySet
        self.release_encoder = lib.wgpuCommandEncoderRelease
        self.release_bind_group = lib.wgpuBindGroupRelease
        # Never destroy a buffer instead: wgpu-native aborts the process when a submission names a destroyed one.
        self.release_buffer = lib.wgpuBufferRelease
        self.release_layout = lib.wgpuBindGroupLayoutRelease
        self.release_shader = lib.wgpuShaderModuleRelease
        self.release_pipeline = lib.wgpuComputePipelineRelease
        self.release_timestamps = lib.wgpuQuerySetRelease
        self.retain_pipeline = lib.wgpuComputePipelineAddRef
        self.unmap = lib.wgpuBufferUnmap
        self.handle = self._request(adapter)
        self.queue = lib.wgpuDeviceGetQueue(self.handle)
        self.create_encoder = partial(lib.wgpuDeviceCreateCommandEncoder, self.handle, ffi.NULL)

    def _request(self, adapter: Adapter) -> Handle:
        """The device, or RuntimeError."""
        ffi, lib = self.ffi, self.lib
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        alive = self._require(descriptor, adapter)
        descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
        descriptor.deviceLostCallbackInfo.callback = self.library.on_lost
        descriptor.deviceLostCallbackInfo.userdata1 = self._sink_handle
        descriptor.uncapturedErrorCallbackInfo.callback = self.library.on_error
        descriptor.uncapturedErrorCallbackInfo.userdata1 = self._sink_handle
        reply: list[tuple[int, Handle, str]] = []
        reply_handle = ffi.new_handle(reply)
        callback = ffi.new("WGPURequestDeviceCallbackInfo *")
        callback.mode = lib.WGPUCallbackMode_AllowSpontaneous
        callback.callback, callback.userdata1 = self.library.on_device, reply_handle
        lib.wgpuAdapterRequestDevice(adapter.handle, descriptor, callback[0])
        status, device, message = reply[0]  # both libraries answer before the call returns
        del alive
        if status != lib.WGPURequestDeviceStatus_Success:
            raise RuntimeError(message)
        return device

    @abstractmethod
    def _require(self, descriptor: Handle, adapter: Adapter) -> object:
        """Asks for features and limits; what must stay alive until the device is there."""

    def host_memory(self, data: bytes | bytearray) -> Handle:
        return self.ffi.from_buffer("char[]", data)

    def offsets(self, count: int) -> Handle:
        return self.ffi.new("uint32_t[]", count)

    # Buffers

    def create_buffer(self, size_bytes: int, usage: int) -> Handle:
        descriptor = self.ffi.new("WGPUBufferDescriptor *")
        descriptor.usage, descriptor.size = usage, size_bytes
        return self.lib.wgpuDeviceCreateBuffer(self.handle, descriptor)

    def import_host_memory(self, memory: memoryview, usage: int) -> Handle:
        self.sink.errors.append(("validation", "this library makes no buffers of host memory"))
        return self.null

    def write_buffer(self, buffer: Handle, offset: int, data: Any) -> None:
        view = self.ffi.from_buffer(data)
        self.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, view, len(view))

    def map_to_write(self, buffer: Handle, size_bytes: int) -> Any:
        return self.map(buffer, size_bytes, is_read=False)

    def map(self, buffer: Handle, size_bytes: int, is_read: bool = True) -> Any:
        mode, mapped_range = self._for_reading if is_read else self._for_writing
        reply = self._map_reply
        reply.clear()
        self._wait(reply, self._map_async(buffer, mode, 0, size_bytes, self._map_info))
        status, message = reply[0]
        if status != self.library.map_success:
            self.sink.errors.append(("internal", f"mapping a staging buffer failed: {message or status}"))
            return None
        return self.ffi.buffer(mapped_range(buffer, 0, size_bytes), size_bytes)

    def _wait(self, reply: list[Any], future: Handle) -> None:
        """Until the reply is there: asks time and again at first, then blocks."""
        ask = self._ask
        ask()
        if reply:
            return
        give_up = perf_counter() + SPIN_S
        while not reply:
            if perf_counter() > give_up:
                self._block(future)
            else:
                ask()

    @abstractmethod
    def _block(self, future: Handle) -> None:
        """Sleeps until the future is reached, or for a while."""

    @abstractmethod
    def poll(self, wait: bool) -> None:
        """See ``NativeDevice``."""

    # Pipelines

    def create_shader(self, source: str, label: str, trusted: bool) -> Handle:
        ffi, strings = self.ffi, Strings(self.ffi)
        wgsl = ffi.new("WGPUShaderSourceWGSL *")
        wgsl.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        wgsl.code = strings.view(source)
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain, descriptor.label = ffi.addressof(wgsl, "chain"), strings.view(label)
        return self._shader(descriptor, trusted)

    def _shader(self, descriptor: Handle, trusted: bool) -> Handle:
        return self.lib.wgpuDeviceCreateShaderModule(self.handle, descriptor)

    def create_layout(self, writable: Sequence[bool], uniform: bool) -> Handle:
        ffi, lib = self.ffi, self.lib
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
        ffi, lib, strings = self.ffi, self.lib, Strings(self.ffi)
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
        ffi = self.ffi
        entries = ffi.new("WGPUBindGroupEntry[]", len(ranges))
        for index, (entry, (buffer, offset, size)) in enumerate(zip(entries, ranges, strict=True)):
            entry.binding, entry.buffer, entry.offset, entry.size = index, buffer, offset, size
        descriptor = ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(ranges), entries
        return self.lib.wgpuDeviceCreateBindGroup(self.handle, descriptor)

    # Commands

    def begin_pass(self, encoder: Handle) -> Handle:
        return self._begin_pass(encoder, self.null)

    def begin_timed_pass(self, encoder: Handle, *, query_set: Handle, first_query: int) -> Handle:
        writes = self.ffi.new("WGPUPassTimestampWrites *")
        writes.querySet, writes.beginningOfPassWriteIndex = query_set, first_query
        writes.endOfPassWriteIndex = first_query + 1
        descriptor = self.ffi.new("WGPUComputePassDescriptor *")
        descriptor.timestampWrites = writes
        return self.lib.wgpuCommandEncoderBeginComputePass(encoder, descriptor)

    def create_timestamps(self, count: int) -> Handle:
        descriptor = self.ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = self.lib.WGPUQueryType_Timestamp, count
        return self.lib.wgpuDeviceCreateQuerySet(self.handle, descriptor)

    def run(self, encoder: Handle) -> bool:
        # wgpu-native aborts the process on an error in wgpuQueueSubmit, so nothing with a known error may reach it; a
        # device that was lost shows when the encoder is finished.
        commands, sink = self._finish(encoder, self.null), self.sink
        self.release_encoder(encoder)
        valid = not sink.errors and sink.lost is None
        if valid:
            self._one_buffer[0] = commands
            self._submit(self.queue, 1, self._one_buffer)
            self.submissions += 1
        self._release_commands(commands)
        return valid

    def flush_writes(self) -> bool:
        return self.run(self.create_encoder())

    def mark(self) -> CMark:
        mark = CMark(self.ffi, self._marks)
        self._after_submitted(mark)
        return mark

    def _after_submitted(self, mark: CMark) -> Handle:
        """Has the library reach the mark when everything submitted so far is done; the future of that."""
        callback = self._done_callback
        callback.userdata1 = mark.handle
        return self.lib.wgpuQueueOnSubmittedWorkDone(self.queue, callback[0])

    def destroy(self) -> None:
        # The library tells that the device is lost when it is next polled and everything submitted is done.
        self.lib.wgpuDeviceDestroy(self.handle)
        self.sink.lost = self.sink.lost or "it was destroyed"

    def close(self) -> None:
        self.destroy()
        self.lib.wgpuQueueRelease(self.queue)
        self.lib.wgpuDeviceRelease(self.handle)
