"""``torch.webgpu``: the module PyTorch looks to for this device type."""

from __future__ import annotations

import types


class WebGPUModule(types.ModuleType):
    pass


def build() -> types.ModuleType:
    from ..aten.fallback import fallback_stats
    from ..engine.record import engine
    from ..engine.sync import synchronize as sync
    from ..runtime.runtime import devices

    m = WebGPUModule("torch.webgpu")
    m.is_available = lambda: bool(devices())
    m.is_initialized = lambda: True
    m.device_count = lambda: len(devices())
    m.current_device = lambda: 0
    m._is_in_bad_fork = lambda: False
    m.manual_seed_all = lambda s: None
    m.manual_seed = lambda s: None
    m.fallback_stats = fallback_stats
    m.synchronize = lambda device=None: sync(0)
    m.get_device_name = lambda device=None: devices()[0].name
    m.get_amp_supported_dtype = lambda: []
    m.memory_allocated = lambda device=None: engine().live_bytes.get(0, 0)
    return m
