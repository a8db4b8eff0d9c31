"""``torch.webgpu``: torch.cuda's vocabulary for adapters, memory and randomness, and the WebGPU controls."""

# ruff: noqa: F401 everything imported here is the module's interface

from importlib import import_module

from torch_webgpu.aten.dispatch.fallback import fallback_stats
from torch_webgpu.caches import CacheStats, cache_stats
from torch_webgpu.engine.current import current_device
from torch_webgpu.errors import (
    AddressError,
    DeviceLostError,
    FallbackError,
    ForkError,
    NoAdapterError,
    OutOfMemoryError,
    ShaderCompileError,
    UnsupportedDtypeError,
    WebGPUError,
)

from . import amp
from .auto_compiling import auto_compile, auto_compile_stats
from .batching import (
    batch,
    disable_batching,
    enable_batching,
    flush_batch,
    get_pending_count,
    is_batching_enabled,
    set_batch_delay,
    set_batch_threshold,
)
from .compiled import compile_stats
from .device import (
    can_device_access_peer,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_arch_list,
    get_capabilities,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    getCapabilities,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    reset_device,
    set_device,
    sync_device,
    synchronize,
)
from .device import is_in_bad_fork as _is_in_bad_fork
from .device import lazy_init as _lazy_init
from .explain import explain
from .export import export, export_generation
from .fusion import (
    disable_fusion,
    enable_fusion,
    get_fusion_stats,
    is_fusion_enabled,
    set_fusion_min_size,
    set_fusion_window,
)
from .fusion_patterns import add_fusion_pattern, get_fusion_patterns, remove_fusion_pattern
from .graphed_callables import make_graphed_callables
from .graphs import CUDAGraph, Graph, graph, graph_pool_handle, is_current_stream_capturing
from .memory import (
    empty_cache,
    get_per_process_memory_fraction,
    list_gpu_processes,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from .profile import profile
from .quantization import quantize_
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

_LOADED_WHEN_ASKED_FOR = {
    "Kernel": "torch_webgpu.extend.shader_op:Kernel",
    "Reduction": "torch_webgpu.extend.reduction:Reduction",
    "compile_shader": "torch_webgpu.extend.shader_library:compile_shader",
    "functional": "torch_webgpu.extend.functional",
    "op": "torch_webgpu.extend.op:op",
    "registry": "torch_webgpu.extend.registry",
    "serve": "torch_webgpu.serve.device:serve",
}
"""Modules, and ``module:name``, that few programs need: ``import torch`` does not wait for them."""


def __getattr__(name: str) -> object:
    if name in _LOADED_WHEN_ASKED_FOR:
        module, _, attribute = _LOADED_WHEN_ASKED_FOR[name].partition(":")
        return getattr(import_module(module), attribute) if attribute else import_module(module)
    raise AttributeError(f"module 'torch.webgpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_LOADED_WHEN_ASKED_FOR))


_initialized = True  # what PyTorch's checkpointing asks before it keeps the random state of a device

__all__ = [name for name in globals() if not name.startswith("__") and name != "import_module"]
