"""``torch.xpu``, ``torch.mtia`` and ``torch.mps``: programs written for them are translated like CUDA's."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.translation.rows import (
    SAME,
    Row,
    emulated,
    error,
    native,
    nothing,
    questions,
    removed,
    rows,
    same,
    translated,
)

from . import cuda

METAL = "Metal's shaders do not run here; write the function with PyTorch's operators, or in WGSL for webgpu"

XPU = frozenset(
    "Event MemPool Stream StreamContext can_device_access_peer change_current_allocator clock_rate current_device "
    "current_stream default_generators device device_count device_memory_used device_of empty_cache get_arch_list "
    "get_device_capability get_device_name get_device_properties get_gencode_flags get_per_process_memory_fraction "
    "get_rng_state get_rng_state_all get_stream_from_external graph graph_pool_handle init initial_seed is_available "
    "is_bf16_supported is_current_stream_capturing is_initialized is_tf32_supported list_gpu_processes "
    "make_graphed_callables manual_seed manual_seed_all max_memory_allocated max_memory_reserved mem_get_info "
    "memory_allocated memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_usage "
    "power_draw reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all set_device "
    "set_per_process_memory_fraction set_rng_state set_rng_state_all set_stream stream synchronize temperature "
    "use_mem_pool utilization".split()
)
"""What torch.xpu has of torch.cuda's names."""

MTIA = frozenset(
    "Event Stream StreamContext current_device current_stream default_generators default_stream device device_count "
    "empty_cache get_device_properties get_rng_state get_rng_state_all graph graph_pool_handle init initial_seed "
    "is_available is_bf16_supported is_initialized manual_seed manual_seed_all max_memory_allocated memory_allocated "
    "memory_stats reset_peak_memory_stats seed seed_all set_device set_rng_state set_rng_state_all set_stream stream "
    "synchronize get_device_capability".split()
)
"""What torch.mtia has of them."""


def _like_cuda(module: str, names: frozenset[str]) -> Iterator[Row]:
    for part in (cuda.device, cuda.memory, cuda.random, cuda.streams):
        for row in part(module):
            if row.leaf in names:
                yield row


def xpu() -> Iterator[Row]:
    """``torch.xpu``"""
    yield from _like_cuda("torch.xpu", XPU)
    unwatched = error("this device captures no graphs; call the function itself, or torch.compile it")
    yield from rows("torch.xpu", "XPUGraph", webgpu=translated("torch.webgpu.Graph"), xpu=SAME, host=unwatched)
    yield from rows("torch.xpu", "XPUPluggableAllocator", error(cuda.ALLOCATOR))
    yield from rows("torch.xpu", "lru_cache", same("Python's own, imported by torch.xpu"))


def mtia() -> Iterator[Row]:
    """``torch.mtia``"""
    yield from _like_cuda("torch.mtia", MTIA)
    unwatched = error("this device captures no graphs; call the function itself, or torch.compile it")
    graph = translated("torch.webgpu.Graph")
    yield from rows("torch.mtia", "MTIAGraph", webgpu=graph, xpu=translated("torch.xpu.XPUGraph"), host=unwatched)
    unkept = nothing("allocations are not recorded with where they were made; torch.webgpu.profile shows what runs")
    yield from rows("torch.mtia", "record_memory_history", unkept)
    unlisted = error("the allocator does not list its blocks; memory_allocated() tells their sum")
    yield from rows("torch.mtia", "snapshot", emulated("memory:snapshot", "now: the history is empty"), host=unlisted)
    observed = nothing("nothing calls back when memory runs out: torch.OutOfMemoryError is raised")
    yield from rows("torch.mtia", "attach_out_of_memory_observer", observed)
    yield from removed("torch.mtia", "classproperty", "a decorator of its own use")
    yield from rows("torch.mtia", "DeferredMtiaCallError", SAME)


def mps() -> Iterator[Row]:
    """``torch.mps`` and ``torch.backends.mps``"""
    shared = "is_available device_count empty_cache get_rng_state manual_seed seed set_per_process_memory_fraction "
    shared += "set_rng_state synchronize Event"
    for part in (cuda.device, cuda.memory, cuda.random, cuda.streams):
        for row in part("torch.mps"):
            if row.leaf in shared.split():
                yield row
    used = {"webgpu": translated("torch.webgpu.memory_allocated"), "xpu": translated("torch.xpu.memory_allocated")}
    yield from rows("torch.mps", "current_allocated_memory", emulated("memory:memory_allocated", cuda.RESIDENT), **used)
    taken = {"webgpu": translated("torch.webgpu.memory_reserved"), "xpu": translated("torch.xpu.memory_reserved")}
    yield from rows("torch.mps", "driver_allocated_memory", emulated("memory:memory_reserved", cuda.RESIDENT), **taken)
    yield from rows("torch.mps", "recommended_max_memory", emulated("memory:{leaf}", "all that the device has"))
    yield from rows("torch.mps", "compile_shader load_metallib", error(METAL))
    events = {target: translated(f"torch.{target}.Event") for target in ("webgpu", "xpu")}
    yield from rows("torch.mps.event", "Event", emulated("streams:HostEvent"), **events)
    signposts = "Metal's signposts do not show the device; torch.profiler and torch.webgpu.profile do"
    yield from rows("torch.mps.profiler", "start stop", nothing(signposts))
    yield from rows("torch.mps.profiler", "profile", nothing(signposts, "profiling:profile"))
    captured = error("Metal's captures do not show the device; torch.webgpu.profile does")
    yield from rows("torch.mps.profiler", "metal_capture", captured)
    yield from rows("torch.mps.profiler", "is_capturing_metal is_metal_capture_enabled", emulated("runtime:no"))
    yield from questions("torch.backends.mps", "is_available is_built", emulated("devices:is_available"))
    system = emulated("devices:{leaf}", "about the operating system")
    yield from rows("torch.backends.mps", "is_macos13_or_newer is_macos_or_newer", system)
    yield from rows("torch.backends.mps", "get_name", emulated("devices:get_device_name", "the device's name"))
    cores = emulated("devices:get_core_count", "a number that nobody tells is 0")
    yield from rows("torch.backends.mps", "get_core_count", cores)


def all_rows() -> Iterator[Row]:
    """Every row of this file."""
    yield from native("xpu", xpu())
    yield from mtia()
    yield from native("mps", mps())
