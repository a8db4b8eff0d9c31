"""``torch.webgpu``: torch.cuda's vocabulary for adapters, memory and randomness, and the WebGPU controls."""

from ..aten.fallback import fallback_stats
from ..errors import OutOfMemoryError
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
from .device import (
    _is_in_bad_fork,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_capabilities,
    get_device_capability,
    get_device_name,
    get_device_properties,
    getCapabilities,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    sync_device,
    synchronize,
)
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .random import (
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

__all__ = [name for name in dir() if not name.startswith("__")]
