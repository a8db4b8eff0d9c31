"""How much memory a GPU has and how much of it is free: what WebGPU does not tell, asked of the Vulkan loader itself.

The figures are those of VK_EXT_memory_budget: heaps that are local to the GPU, and what this process may still take of
them. https://registry.khronos.org/vulkan/specs/latest/man/html/VK_EXT_memory_budget.html
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

SUCCESS = 0
API_VERSION_1_1 = 1 << 22 | 1 << 12
APPLICATION_INFO, INSTANCE_CREATE_INFO = 0, 1
MEMORY_PROPERTIES_2, MEMORY_BUDGET = 1000059006, 1000237000
MEMORY_BUDGET_EXTENSION = b"VK_EXT_memory_budget"
DEVICE_LOCAL = 1
MAX_TYPES, MAX_HEAPS = 32, 16
MAX_PROPERTIES_BYTES = 4096  # VkPhysicalDeviceProperties takes 824


class _ApplicationInfo(Structure):
    _fields_ = (
        ("type", c_uint32), ("next", c_void_p), ("name", c_char_p), ("version", c_uint32), ("engine", c_char_p),
        ("engine_version", c_uint32), ("api_version", c_uint32),
    )  # fmt: skip


class _InstanceCreateInfo(Structure):
    _fields_ = (
        ("type", c_uint32), ("next", c_void_p), ("flags", c_uint32), ("application", POINTER(_ApplicationInfo)),
        ("layers", c_uint32), ("layer_names", c_void_p), ("extensions", c_uint32), ("extension_names", c_void_p),
    )  # fmt: skip


class _Properties(Structure):
    """The beginning of VkPhysicalDeviceProperties."""

    _fields_ = (
        ("api_version", c_uint32), ("driver_version", c_uint32), ("vendor_id", c_uint32), ("device_id", c_uint32),
        ("device_type", c_uint32), ("name", c_char * 256), ("rest", c_char * (MAX_PROPERTIES_BYTES - 276)),
    )  # fmt: skip


class _Extension(Structure):
    _fields_ = (("name", c_char * 256), ("version", c_uint32))


class _MemoryType(Structure):
    _fields_ = (("flags", c_uint32), ("heap", c_uint32))


class _Heap(Structure):
    _fields_ = (("size", c_uint64), ("flags", c_uint32))


class _MemoryProperties(Structure):
    _fields_ = (
        ("type", c_uint32), ("next", c_void_p), ("type_count", c_uint32), ("types", _MemoryType * MAX_TYPES),
        ("heap_count", c_uint32), ("heaps", _Heap * MAX_HEAPS),
    )  # fmt: skip


class _Budget(Structure):
    _fields_ = (
        ("type", c_uint32), ("next", c_void_p), ("budget", c_uint64 * MAX_HEAPS), ("usage", c_uint64 * MAX_HEAPS),
    )  # fmt: skip


class DeviceMemory(NamedTuple):
    """Bytes of a GPU's own memory. ``free``: what this process may still take; None where nobody tells."""

    free: int | None
    total: int


def memory_of(vendor_id: int, device_id: int, name: str | None, ordinal: int = 0) -> DeviceMemory | None:
    """The memory of a GPU, the ``ordinal``-th of those that look the same; None where nobody tells.

    ``name``: as Vulkan's driver calls it; None where only another driver's name is known.
    """
    loader, instance = _loader()
    if instance is None:
        return None
    count = c_uint32()
    if loader.vkEnumeratePhysicalDevices(instance, byref(count), None) != SUCCESS or not count.value:
        return None
    gpus = (c_void_p * count.value)()
    if loader.vkEnumeratePhysicalDevices(instance, byref(count), gpus) != SUCCESS:
        return None
    wanted = (vendor_id, device_id, name)[: 2 if name is None else 3]
    same = [gpu for gpu in gpus if gpu and _identity(loader, gpu)[: len(wanted)] == wanted]
    return _memory(loader, same[min(ordinal, len(same) - 1)]) if same else None


@cache
def _loader() -> tuple[Any, c_void_p | None]:
    """The Vulkan library and an instance of it; no instance where there is no library, or none that answers."""
    try:
        loader = ctypes.CDLL("vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1")
        loader.vkGetPhysicalDeviceMemoryProperties2  # noqa: B018  raises where the loader is older than Vulkan 1.1
    except (OSError, AttributeError):
        return None, None
    application = _ApplicationInfo(type=APPLICATION_INFO, api_version=API_VERSION_1_1)
    info = _InstanceCreateInfo(type=INSTANCE_CREATE_INFO, application=ctypes.pointer(application))
    instance = c_void_p()
    created = loader.vkCreateInstance(byref(info), None, byref(instance)) == SUCCESS
    return loader, instance if created else None


def _identity(loader: Any, gpu: int) -> tuple[int, int, str]:
    found = _Properties()
    loader.vkGetPhysicalDeviceProperties(c_void_p(gpu), byref(found))
    return found.vendor_id, found.device_id, found.name.decode(errors="replace")


def _memory(loader: Any, gpu: int) -> DeviceMemory:
    budget = _Budget(type=MEMORY_BUDGET)
    properties = _MemoryProperties(type=MEMORY_PROPERTIES_2)
    tells = _has_budget(loader, gpu)
    if tells:
        properties.next = ctypes.cast(ctypes.pointer(budget), c_void_p)
    loader.vkGetPhysicalDeviceMemoryProperties2(c_void_p(gpu), byref(properties))
    local = [k for k in range(properties.heap_count) if properties.heaps[k].flags & DEVICE_LOCAL]
    free = sum(max(0, budget.budget[k] - budget.usage[k]) for k in local)
    return DeviceMemory(free if tells else None, sum(properties.heaps[k].size for k in local))


def _has_budget(loader: Any, gpu: int) -> bool:
    count = c_uint32()
    loader.vkEnumerateDeviceExtensionProperties(c_void_p(gpu), None, byref(count), None)
    extensions = (_Extension * count.value)()
    loader.vkEnumerateDeviceExtensionProperties(c_void_p(gpu), None, byref(count), extensions)
    return MEMORY_BUDGET_EXTENSION in {extension.name for extension in extensions}
