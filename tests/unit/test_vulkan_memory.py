"""What the Vulkan loader is asked about memory, and how its answers are read: by a loader that is known to be right."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from torch_webgpu.runtime import vulkan_memory
from torch_webgpu.runtime.vulkan_memory import DeviceMemory, memory_of

GIB = 1 << 30


class Loader:
    """Three GPUs: two that look the same, with their own memory and the host's, and one that keeps its budget."""

    GPUS = ((0x10DE, 7, b"big"), (0x10DE, 7, b"big"), (0x1002, 9, b"old"))

    def vkEnumeratePhysicalDevices(self, instance: Any, count: Any, gpus: Any) -> int:
        count._obj.value = len(self.GPUS)
        for k in range(len(self.GPUS) if gpus is not None else 0):
            gpus[k] = 100 + k
        return 0

    def vkGetPhysicalDeviceProperties(self, gpu: Any, found: Any) -> None:
        found._obj.vendor_id, found._obj.device_id, found._obj.name = self.GPUS[gpu.value - 100]

    def vkEnumerateDeviceExtensionProperties(self, gpu: Any, layer: Any, count: Any, extensions: Any) -> int:
        names = [b"VK_KHR_swapchain"] + [b"VK_EXT_memory_budget"] * (gpu.value != 102)
        count._obj.value = len(names)
        for k, name in enumerate(names if extensions is not None else ()):
            extensions[k].name = name
        return 0

    def vkGetPhysicalDeviceMemoryProperties2(self, gpu: Any, found: Any) -> None:
        properties = found._obj
        assert properties.type == vulkan_memory.MEMORY_PROPERTIES_2
        properties.heap_count = 3
        for k, (size, flags) in enumerate([(16 * GIB, 1), (32 * GIB, 0), (GIB, 3)]):
            properties.heaps[k].size, properties.heaps[k].flags = size, flags
        if properties.next:
            budget = ctypes.cast(properties.next, ctypes.POINTER(vulkan_memory._Budget)).contents
            assert budget.type == vulkan_memory.MEMORY_BUDGET
            for k, (most, used) in enumerate([(12 * GIB, (gpu.value - 100) * GIB), (30 * GIB, 0), (0, GIB)]):
                budget.budget[k], budget.usage[k] = most, used


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan_memory, "_loader", lambda: (Loader(), ctypes.c_void_p(1)))


def test_free_memory_of_the_gpu_itself(loader: None) -> None:
    assert memory_of(0x10DE, 7, "big") == DeviceMemory(12 * GIB, 17 * GIB)
    assert memory_of(0x10DE, 7, "big", ordinal=1) == DeviceMemory(11 * GIB, 17 * GIB)
    assert memory_of(0x10DE, 7, "big", ordinal=5) == DeviceMemory(11 * GIB, 17 * GIB)


def test_a_driver_that_keeps_its_budget_tells_the_total(loader: None) -> None:
    assert memory_of(0x1002, 9, "old") == DeviceMemory(None, 17 * GIB)


def test_unknown_gpus(loader: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_of(0x1002, 7, "big") is None
    monkeypatch.setattr(vulkan_memory, "_loader", lambda: (None, None))
    assert memory_of(0x10DE, 7, "big") is None


def test_structures_are_as_large_as_the_specification_says() -> None:
    assert ctypes.sizeof(vulkan_memory._MemoryProperties) == 16 + 520
    assert ctypes.sizeof(vulkan_memory._Budget) == 16 + 2 * 8 * 16
    assert ctypes.sizeof(vulkan_memory._InstanceCreateInfo) == 64
    assert ctypes.sizeof(vulkan_memory._ApplicationInfo) == 48
    assert ctypes.sizeof(vulkan_memory._Extension) == 260
