"""``torch.cuda`` itself; ``torch.xpu`` and ``torch.mtia`` have the same vocabulary (:mod:`.vendors`)."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.translation.emulated.types import DTYPES
from torch_webgpu.translation.rows import OWN, SAME, Row, emulated, error, nothing, questions, rows, same, translated

ONE_QUEUE = "the device has one queue, whose work runs in the program's order: streams are names of it"
NOT_TOLD = (
    "neither WebGPU nor PyTorch's other devices tell it; ask the vendor's tool (nvidia-smi, rocm-smi, intel_gpu_top, "
    "powermetrics)"
)
HANDLE = "there is no CUDA library behind the device whose handle could be given away; call PyTorch's own operators"
GREEN = "the device's processors cannot be divided among contexts; use one stream"
ALLOCATOR = "memory comes from the device's own allocator, which cannot be exchanged; leave it out"
VISIBLE = "as many as CUDA_VISIBLE_DEVICES lets be seen; TORCH_WEBGPU_ADAPTER says which is the first"
RULE = "(8, 0) everywhere: the first generation of CUDA devices with bfloat16, and no float8"


def device(module: str) -> Iterator[Row]:
    """Which devices there are. ``module``: "torch.cuda", or another one with these names."""
    native = {"webgpu": OWN, "xpu": OWN}
    host = emulated("devices:{leaf}")
    if module == "torch.cuda":
        yield from questions(module, "is_available device_count", emulated("devices:visible_{leaf}", VISIBLE))
    else:
        yield from questions(module, "is_available device_count", **native, host=host)
    yield from questions(module, "is_initialized", emulated("devices:{leaf}"))
    yield from questions(module, "is_bf16_supported", **native, host=host)
    yield from rows(module, "init", emulated("devices:{leaf}", "devices are opened by themselves"))
    yield from rows(module, "current_device set_device device device_of can_device_access_peer", **native, host=host)
    yield from rows(module, "synchronize get_device_name get_arch_list get_gencode_flags", **native, host=host)
    # PyTorch's own compiler asks for these two, and takes an error for "no such device".
    yield from questions(module, "get_device_capability", emulated("devices:{leaf}", RULE))
    yield from questions(
        module, "get_device_properties",
        emulated("devices:{leaf}", f"a number that nobody tells is 0; major and minor: {RULE}"),
    )  # fmt: skip
    yield from rows(module, "is_tf32_supported", **native, host=host)
    unshared = nothing("memory of the device is not shared between processes", "devices:ipc_collect")
    yield from rows(module, "ipc_collect", unshared)
    note = error(NOT_TOLD)
    yield from rows(module, "clock_rate power_draw temperature utilization memory_usage", note, xpu=OWN)
    yield from rows(module, "list_gpu_processes", note, webgpu=OWN)
    yield from rows(module, "current_blas_handle current_solver_handle", error(HANDLE))


RESIDENT = "cpu: the process's resident memory, tensors or not; mps: peaks are the highest figures that were asked for"


def memory(module: str) -> Iterator[Row]:
    """How much memory is in use, and the allocator."""
    native = {"webgpu": OWN, "xpu": OWN}
    host = emulated("memory:{leaf}", RESIDENT)
    yield from rows(
        module, "memory_allocated max_memory_allocated memory_reserved max_memory_reserved", **native, host=host
    )
    yield from rows(module, "memory_stats memory_stats_as_nested_dict mem_get_info", **native, host=host)
    yield from rows(module, "memory_summary", webgpu=OWN, xpu=emulated("memory:{leaf}"), host=host)
    for old, now in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
        chosen = translated(f"torch.{{target}}.{now}")
        yield from rows(module, old, webgpu=chosen, xpu=chosen, host=emulated(f"memory:{now}", RESIDENT))
    unpeaked = nothing(
        "the operating system keeps the process's peak since its start", "memory:reset_peak_memory_stats"
    )
    peaks = {"mps": emulated("memory:reset_peak_memory_stats"), "cpu": unpeaked}
    yield from rows(module, "reset_peak_memory_stats", **native, **peaks)
    chosen = translated("torch.{target}.reset_peak_memory_stats", "resets all peaks, as torch.cuda's own does")
    yield from rows(module, "reset_max_memory_allocated reset_max_memory_cached", webgpu=chosen, xpu=chosen, **peaks)
    uncounted = nothing("only what is in use is counted, not what was", "memory:reset_peak_memory_stats")
    yield from rows(module, "reset_accumulated_memory_stats", **native, host=uncounted)
    kept = nothing("the CPU keeps no memory back", "devices:ipc_collect")
    yield from rows(module, "empty_cache", **native, mps=OWN, cpu=kept)
    unlisted = error("the allocator does not list its blocks; memory_allocated() tells their sum")
    yield from rows(module, "memory_snapshot", **native, host=unlisted)
    yield from rows(module, "device_memory_used", emulated("memory:{leaf}", "all that is not free"), xpu=OWN)
    pinned = "pinned memory is not pooled, so nothing of it is counted"
    yield from rows(
        module, "host_memory_stats host_memory_stats_as_nested_dict", nothing(pinned, "memory:nothing_counted")
    )
    yield from rows(module, "reset_accumulated_host_memory_stats reset_peak_host_memory_stats", nothing(pinned))
    virtual = "webgpu: an address that names the memory to PyTorch, and is no use to other libraries"
    yield from rows(module, "caching_allocator_alloc caching_allocator_delete", emulated("allocator:{leaf}", virtual))
    always = "the device's memory is always pooled"
    yield from rows(module, "caching_allocator_enable", nothing(always))
    yield from rows(module, "caching_allocator_disabled", nothing(always, "allocator:{leaf}"))
    yield from rows(module, "get_allocator_backend", emulated("allocator:{leaf}", "the device's name"))
    yield from rows(module, "change_current_allocator CUDAPluggableAllocator", error(ALLOCATOR), xpu=error(ALLOCATOR))
    pool = "tensors come from the device's one pool"
    yield from rows(module, "MemPool use_mem_pool", emulated("allocator:{leaf}", pool), xpu=OWN)
    limit = nothing("the device's memory is not divided between programs; other programs' use does not change")
    limited = emulated("allocator:{leaf}", "no limit where nobody tells how much memory the adapter has")
    yield from rows(module, "set_per_process_memory_fraction", limit, webgpu=limited, xpu=OWN, mps=OWN)
    yield from rows(module, "get_per_process_memory_fraction", emulated("allocator:{leaf}", "1: no limit"), **native)


def snapshots() -> Iterator[Row]:
    """The memory's history, which programs call although its names are private."""
    now = "what is in use now: the history is empty"
    unlisted = error("the allocator does not list its blocks; torch.cuda.memory_allocated() tells their sum")
    for leaf, by in (("_snapshot", "memory:snapshot"), ("_dump_snapshot", "memory:dump_snapshot")):
        yield from rows("torch.cuda.memory", leaf, emulated(by, now), host=unlisted)
    unkept = nothing("allocations are not recorded with where they were made; torch.webgpu.profile shows what runs")
    yield from rows("torch.cuda.memory", "_record_memory_history", unkept)


def random(module: str) -> Iterator[Row]:
    """Seeds and random states."""
    native = {"webgpu": OWN, "xpu": OWN}
    one = emulated("random:{leaf}", "cpu: PyTorch's default generator")
    yield from rows(module, "get_rng_state get_rng_state_all set_rng_state set_rng_state_all", **native, host=one)
    yield from rows(module, "manual_seed seed initial_seed", **native, host=one)
    for leaf in ("manual_seed", "seed"):
        chosen = emulated(f"random:{leaf}", "cpu: PyTorch's default generator")
        yield from rows(module, f"{leaf}_all", **native, host=chosen)
    yield from rows(module, "default_generators", **native, host=emulated("random:{leaf}"))


def streams(module: str) -> Iterator[Row]:
    """Streams, events and captured graphs."""
    own = translated("torch.{target}.{leaf}", ONE_QUEUE)
    host = emulated("streams:{leaf}", ONE_QUEUE)
    yield from rows(module, "Stream StreamContext stream current_stream set_stream", webgpu=own, xpu=OWN, host=host)
    current = translated("torch.xpu.current_stream", "xpu: the current one, since torch.xpu names no default")
    yield from rows(module, "default_stream", webgpu=own, xpu=current, host=host)
    times = "the time is the GPU's where it has timestamp queries, else the host's"
    measured = {"mps": emulated("streams:MetalEvent"), "cpu": emulated("streams:HostEvent", "the host's time")}
    yield from rows(module, "Event", webgpu=translated("torch.webgpu.Event", times), xpu=OWN, **measured)
    idle = "the queue is not made to wait: no result depends on when work runs"
    if module == "torch.cuda":
        yield from rows(module, "_sleep", nothing(idle))
    foreign = error("streams of other libraries cannot be taken over; use torch.cuda.current_stream()")
    yield from rows(module, "ExternalStream", foreign)
    yield from rows(module, "get_stream_from_external", foreign, xpu=OWN)
    yield from rows(module, "GreenContext", error(GREEN))
    yield from rows(module, "get_sync_debug_mode", emulated("streams:{leaf}", "0: what waits is not watched"))
    explain = "what waits for the device is not reported; torch.webgpu.explain() and profile() show it"
    yield from rows(module, "set_sync_debug_mode", nothing(explain))
    unwatched = error("this device captures no graphs; call the function itself, or torch.compile it")
    yield from rows(module, "CUDAGraph", webgpu=OWN, xpu=translated("torch.xpu.XPUGraph"), host=unwatched)
    yield from rows(module, "graph", webgpu=OWN, xpu=OWN, host=unwatched)
    one = emulated("graphs:{leaf}")
    yield from rows(module, "graph_pool_handle is_current_stream_capturing", webgpu=OWN, xpu=OWN, host=one)
    plain = nothing("this device captures no graphs: the callables run as they are", "graphs:{leaf}")
    yield from rows(module, "make_graphed_callables", webgpu=OWN, xpu=OWN, host=plain)
    if module == "torch.cuda":
        unlisted = error("captured graphs are no files of CUDA's; torch.webgpu.trace shows what a function becomes")
        yield from rows(module, "export_dot export_graph_data", unlisted)
        parts = "capture_start capture_end instantiate replay_start replay_end destroy"
        hooks = " ".join(f"register_graph_{part}_hook" for part in parts.split())
        yield from rows(f"{module}.graphs", hooks, error("nothing calls back for all graphs; call it beside each"))


def types() -> Iterator[Row]:
    """``torch.cuda.FloatTensor`` and its kind."""
    tensors = " ".join(f"{name}Tensor" for name in DTYPES if not name.startswith("Complex"))
    note = "a class that makes tensors on the target, and whose instances they are"
    yield from rows("torch.cuda", tensors, emulated("types:{leaf}", note))
    storages = " ".join(f"{name}Storage" for name in DTYPES)
    yield from rows("torch.cuda", storages, emulated("types:{leaf}", note))
    sparse = "BFloat16 Byte Char Double Float Half Int Long Short"
    names = " ".join(f"{name}Tensor" for name in sparse.split())
    yield from rows("torch.cuda.sparse", names, emulated("types:sparse_{leaf}", note))


def python() -> Iterator[Row]:
    """What torch.cuda has that is about no device."""
    yield from rows("torch.cuda", "cast classproperty lru_cache", same("Python's own, imported by torch.cuda"))
    yield from rows("torch.cuda", "AcceleratorError OutOfMemoryError CudaError DeferredCudaCallError cudaStatus", SAME)
    yield from rows("torch.cuda", "has_half has_magma", same("about how PyTorch was built"))
    yield from rows("torch.cuda", "check_error", emulated("runtime:{leaf}", "a RuntimeError without CUDA's text"))
    calls = "memory figures, the profiler's switches and error texts; other names raise AttributeError"
    yield from rows("torch.cuda", "cudart", emulated("runtime:{leaf}", calls))


def all_rows() -> Iterator[Row]:
    """Every row of this file."""
    for part in (device, memory, random, streams):
        yield from part("torch.cuda")
    yield from snapshots()
    yield from types()
    yield from python()
