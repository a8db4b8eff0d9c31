"""How much memory an adapter has: the machine's for a software adapter, what Vulkan or Metal tells of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.host_memory import machine_memory
from torch_webgpu.runtime.metal_memory import metal_memory
from torch_webgpu.runtime.vulkan_memory import DeviceMemory, memory_of

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device


def adapter_memory(index: int) -> DeviceMemory | None:
    """None where neither WebGPU nor the operating system nor Vulkan tells."""
    eng = engine()
    device = eng.device(index)
    if device.target.software:
        return machine_memory()
    if device.info["backend_type"] == "Metal":
        return metal_memory(device.stats.reserved_bytes)
    identity = _identity(device)
    if identity is None:
        return None
    return memory_of(*identity, sum(_identity(other) == identity for other in eng.devices[:index]))


def _identity(device: Device) -> tuple[int, int, str | None] | None:
    """By what Vulkan's loader knows a GPU: also one of D3D12, whose driver may call it otherwise."""
    backend, ids = device.info["backend_type"], (device.info["vendor_id"], device.info["device_id"])
    if backend == "Vulkan":
        return *ids, device.name
    return (*ids, None) if backend == "D3D12" and all(ids) else None
