"""How much memory an adapter has: the machine's for a software adapter, what Vulkan tells of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.host_memory import machine_memory
from torch_webgpu.runtime.vulkan_memory import DeviceMemory, memory_of

if TYPE_CHECKING:
    from torch_webgpu.runtime.runtime import Device


def adapter_memory(index: int) -> DeviceMemory | None:
    """None where neither WebGPU nor the operating system nor Vulkan tells."""
    eng = engine()
    device = eng.device(index)
    if device.target.software:
        return machine_memory()
    if device.info["backend_type"] != "Vulkan":
        return None
    identity = _identity(device)
    return memory_of(*identity, sum(_identity(other) == identity for other in eng.devices[:index]))


def _identity(device: Device) -> tuple[int, int, str]:
    return device.info["vendor_id"], device.info["device_id"], device.name
