"""Devices: WebGPU implementations by name, and what a program adds to them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from torch_webgpu.engine.record import engine
from torch_webgpu.errors import NotRegisteredError, RegistrationFailedError, WebGPUError
from torch_webgpu.runtime import implementations
from torch_webgpu.runtime.adapters import listed
from torch_webgpu.runtime.device_config import DeviceConfig
from torch_webgpu.runtime.implementation import Implementation
from torch_webgpu.runtime.implementations import DeviceEntry

from .handle import RegistrationHandle

_closed: set[int] = set()
"""Indices of devices whose implementation was unregistered."""
_lock = threading.RLock()


@dataclass(frozen=True)
class DeviceContext:
    """A registered device that is in use: ``devices`` are those of PyTorch's that its adapters are, the best first."""

    name: str
    implementation: Implementation
    devices: tuple[torch.device, ...]

    @property
    def device(self) -> torch.device:
        """The best of them."""
        return self.devices[0]

    @property
    def ready(self) -> bool:
        """Whether it can be used: false once it was unregistered."""
        return not _closed.intersection(device.index for device in self.devices)


def register_device(config: DeviceConfig) -> RegistrationHandle:
    """Registers a WebGPU implementation. It is started by :func:`initialize_device`, which makes devices of it.

    Raises AlreadyRegisteredError, a ValueError, where the name is taken.
    """
    implementations.register(config)
    return RegistrationHandle(config.name, lambda: unregister_device(config.name))


def unregister_device(name: str) -> None:
    """Takes a registered device away. Its devices are closed: using one, or a tensor on one, raises WebGPUError.

    NotRegisteredError, a LookupError, where there is none; InvalidConfigError for what the program did not register.
    """
    with _lock:
        implementations.unregister(name)
        for index in _indices_of(name):
            _closed.add(index)
            engine().close(index, WebGPUError(f"webgpu:{index} cannot be used: the device {name!r} was unregistered"))


def has_device(name: str) -> bool:
    """Whether a device of this name can be asked for."""
    return name in implementations.names()


def get_device(name: str) -> DeviceEntry:
    """A device's configuration, and where it is from. NotRegisteredError, a LookupError, where there is none."""
    return implementations.entry(name)


def get_device_config(name: str) -> DeviceConfig:
    """A device's configuration. NotRegisteredError, a LookupError, where there is none."""
    return get_device(name).config


def list_devices() -> list[str]:
    """The names of all devices: this package's, those of installed packages, and those that were registered."""
    return implementations.names()


def list_custom_devices() -> list[str]:
    """The names of all devices but this package's."""
    return [name for name in implementations.names() if name not in implementations.MODULES]


def get_device_context(name: str) -> DeviceContext:
    """What a device that is in use is here. NotRegisteredError, a LookupError, where it is not, or there is none."""
    get_device(name)
    indices = _indices_of(name)
    if not indices:
        raise NotRegisteredError(f"the device {name!r} is not in use in this process: call initialize_device({name!r})")
    return DeviceContext(name, implementations.implementation(name), tuple(torch.device("webgpu", k) for k in indices))


def initialize_device(name: str) -> DeviceContext:
    """Starts a device: each of its adapters becomes a ``webgpu:n`` behind those that there are.

    Nothing is done for one that is in use. Raises NotRegisteredError, a LookupError, where there is none, and
    RegistrationFailedError, a RuntimeError, where it does not start, or has no adapters.
    """
    with _lock:
        entry = get_device(name)
        if not _indices_of(name):
            try:
                adapters = listed(implementations.implementation(name).adapters())
            except (ImportError, OSError) as error:
                raise RegistrationFailedError(
                    f"the device {name!r} does not load: {error}. {implementations.advice(name)}"
                ) from error
            if not adapters:
                raise RegistrationFailedError(f"the device {name!r} ({entry.origin}) has no adapters on this machine")
            engine().add_devices(adapters)
        return get_device_context(name)


def _indices_of(name: str) -> list[int]:
    """Which devices of this process are of an implementation."""
    try:
        devices = engine().devices
    except WebGPUError:  # there are none
        return []
    return [device.index for device in devices if device.implementation == name and device.index not in _closed]
