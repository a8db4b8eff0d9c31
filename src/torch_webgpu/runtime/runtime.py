"""The process's GPUs, best first. The composition root of this package, and its only state.

``Device`` and ``Buffer`` are imported when first asked for: they load numpy, and ``import torch`` must not pay for it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from torch_webgpu.config import check, config
from torch_webgpu.errors import NoAdapterError, WebGPUError

from .adapters import adapters
from .commands import ClearBuffer, Command, CopyBuffer, Dispatch

if TYPE_CHECKING:
    from .buffers import Buffer
    from .device import Device
    from .implementation import Adapter

__all__ = [
    "Buffer",
    "ClearBuffer",
    "Command",
    "CopyBuffer",
    "Device",
    "Dispatch",
    "add_devices",
    "devices",
    "provide",
    "provide_first",
]

refusal: Exception | None = None
"""Why the device cannot be used although PyTorch knows it: its registration failed half-way (torch_webgpu_autoload)."""

_provided: tuple[Device, ...] = ()
_added: list[Device] = []


def devices() -> list[Device]:
    """The usable devices, best first, software ones last; empty where there is none.

    ``TORCH_WEBGPU_ADAPTER`` (an index into this order, or part of a name) puts one first; NoAdapterError when nothing
    matches it, FlagError for an environment variable that cannot be read. Adapters are looked for once, at the first
    call.
    """
    if refusal is not None:
        raise WebGPUError(f"the webgpu device could not be loaded: {refusal}") from refusal
    return [*_runtime(), *_added]


def provide(described: tuple[Device, ...]) -> None:
    """Makes these the devices of this process instead of those of its adapters: devices without an adapter, for tests.

    RuntimeError once adapters were looked for: tensors may be on their devices by then.
    """
    global _provided
    if _runtime.cache_info().misses:
        raise RuntimeError("the devices of this process are chosen already: call runtime.provide before devices()")
    _provided = described


def provide_first(first: Sequence[Adapter]) -> list[Device]:
    """Makes devices of these adapters, and behind them of this machine's. RuntimeError as :func:`provide`."""
    from .device import Device

    try:
        others = adapters()
    except NoAdapterError:
        others = []
    made = tuple(Device(index, adapter) for index, adapter in enumerate((*first, *others)))
    provide(made)
    _at_the_end()
    return list(made[: len(first)])


def add_devices(adapters: Sequence[Adapter]) -> list[Device]:
    """Makes devices of more adapters, behind all that there are."""
    from .device import Device

    made = [Device(index, adapter) for index, adapter in enumerate(adapters, len(devices()))]
    _added.extend(made)
    _at_the_end()
    return made


@cache
def _at_the_end() -> None:
    """Registers what is to be done at the end of the process, and in a forked one."""
    atexit.register(_finish)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_disable)


@cache
def _runtime() -> tuple[Device, ...]:
    if _provided:
        return _provided
    check()
    found_adapters = adapters()
    if not found_adapters:
        return ()
    from .device import Device

    made = tuple(Device(index, adapter) for index, adapter in enumerate(found_adapters * config().copies))
    _at_the_end()
    return made


def _finish() -> None:
    """At exit, where nobody else does: the threads of a software adapter must not outlive the interpreter."""
    for device in (*_runtime(), *_added):
        device.finish()


def _disable() -> None:
    from .device import FORKED

    for device in (*_runtime(), *_added):
        device.disable(FORKED)
    if any(device.is_open for device in (*_runtime(), *_added)):
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


def __getattr__(name: str) -> Any:
    if name == "Device":
        from .device import Device

        return Device
    if name == "Buffer":
        from .buffers import Buffer

        return Buffer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
