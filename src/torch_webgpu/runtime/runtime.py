"""The process's GPUs, best first. The composition root of this package, and its only state.

``Device`` and ``Buffer`` are imported when first asked for: they load wgpu, and ``import torch`` must not pay for it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from torch_webgpu.config import config
from torch_webgpu.errors import NoAdapterError, WebGPUError
from torch_webgpu.runtime.commands import Clear, Command, Copy, Dispatch

if TYPE_CHECKING:
    from torch_webgpu.runtime.buffers import Buffer
    from torch_webgpu.runtime.device import Device
    from torch_webgpu.runtime.ffi import Adapter

__all__ = ["Buffer", "Clear", "Command", "Copy", "Device", "Dispatch", "devices"]

_TYPE_ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
_BACKEND_ORDER = ("Metal", "Vulkan", "D3D12", "Unknown", "OpenGL", "OpenGLES")


def devices() -> list[Device]:
    """The usable devices, best first, software ones last; empty where there is none.

    ``TORCH_WEBGPU_ADAPTER`` (an index into this order, or part of a name) puts one first; NoAdapterError when nothing
    matches it. Adapters are looked for once, at the first call.
    """
    return list(_runtime())


@cache
def _runtime() -> tuple[Device, ...]:
    if "XDG_RUNTIME_DIR" not in os.environ:
        # Outside a desktop session Mesa's device-select layer would complain on stderr, and has nothing to select.
        os.environ.setdefault("NODEVICE_SELECT", "1")
    try:
        from torch_webgpu.runtime import device, ffi

        adapters = ffi.enumerate_adapters()
    except (ImportError, OSError):
        return ()  # wgpu is not installed or its library does not load: there is no adapter
    found = tuple(device.Device(index, adapter) for index, adapter in enumerate(_sorted(adapters) * config().copies))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_disable, found, device.FORKED))
    return found


def _disable(found: tuple[Device, ...], reason: WebGPUError) -> None:
    for device in found:
        device.disable(reason)
    if any(device.is_open for device in found):
        _skip_exit_handlers()


def _skip_exit_handlers() -> None:
    """In a forked child: when it ends, what C libraries have registered for the end of the process is not run.

    Drivers take their state apart there, and some of it is the parent's too: with NVIDIA's, the child crashes and the
    parent then waits for the GPU for ever. ``multiprocessing`` ends its children like this. Python's own handlers run,
    and the streams of C are flushed.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "fcloseall"):  # glibc
        # The last one registered is the first to run.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fcloseall, None, None)


def _sorted(adapters: list[Adapter]) -> list[Adapter]:
    """``adapters`` without a GPU's second listing by another backend, best first, the wanted one in front."""
    by_backend = sorted(adapters, key=lambda adapter: _BACKEND_ORDER.index(adapter.info["backend_type"]))
    unique: list[Adapter] = []
    for adapter in by_backend:
        if not any(_same_gpu(adapter, other) for other in unique):
            unique.append(adapter)
    best = sorted(unique, key=lambda adapter: _TYPE_ORDER.index(adapter.info["adapter_type"]))
    wanted = config().adapter
    if not wanted or not best:
        return best
    first = _choose(best, wanted)
    return [first, *(adapter for adapter in best if adapter is not first)]


def _same_gpu(one: Adapter, other: Adapter) -> bool:
    """Whether two backends list the same GPU. Two entries of one backend are two GPUs."""
    if one.info["backend_type"] == other.info["backend_type"]:
        return False
    ids = [(adapter.info["vendor_id"], adapter.info["device_id"]) for adapter in (one, other)]
    names = sorted((adapter.info["device"] for adapter in (one, other)), key=len)
    return (ids[0] == ids[1] and all(ids[0])) or names[1].startswith(names[0])


def _choose(adapters: list[Adapter], wanted: str) -> Adapter:
    names = [adapter.info["device"] for adapter in adapters]
    if wanted.isdigit() and int(wanted) < len(adapters):
        return adapters[int(wanted)]
    for adapter, name in zip(adapters, names, strict=True):
        if wanted.lower() in name.lower():
            return adapter
    raise NoAdapterError(f"TORCH_WEBGPU_ADAPTER={wanted!r} matches none of: " + ", ".join(names))


def __getattr__(name: str) -> Any:
    if name == "Device":
        from torch_webgpu.runtime.device import Device

        return Device
    if name == "Buffer":
        from torch_webgpu.runtime.buffers import Buffer

        return Buffer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
