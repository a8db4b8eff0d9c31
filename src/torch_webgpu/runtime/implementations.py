"""Which WebGPU implementations there are: ours, those of installed packages, and those that the program registers."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from torch_webgpu.config import IMPLEMENTATIONS_GROUP, installed_implementations
from torch_webgpu.errors import (
    AlreadyRegisteredError,
    InvalidConfigError,
    NotRegisteredError,
    RegistrationFailedError,
    RegistryError,
    did_you_mean,
)

from .device_config import DeviceConfig
from .implementation import Implementation

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MODULES = {"dawn": "torch_webgpu.runtime.dawn", "wgpu": "torch_webgpu.runtime.wgpu_native"}
"""Where our implementations are, by name, the one to be preferred on a GPU first."""
INSTALL = {"dawn": "pip install 'torch-webgpu[dawn]'", "wgpu": "pip install wgpu"}
LOAD_ERRORS = (ImportError, OSError, RuntimeError, RegistryError)
"""What loading an implementation raises where its library is missing: wgpu-py raises RuntimeError."""


def _ours(name: str) -> Implementation:
    if "XDG_RUNTIME_DIR" not in os.environ:
        # Outside a desktop session Mesa's device-select layer would complain on stderr, and has nothing to select.
        os.environ.setdefault("NODEVICE_SELECT", "1")
    return import_module(MODULES[name]).IMPLEMENTATION


@dataclass(frozen=True)
class DeviceEntry:
    """A name in the registry of devices. ``origin``: "built-in", "registered", or the package that it is from."""

    config: DeviceConfig
    origin: str


_OURS = {name: DeviceEntry(DeviceConfig(name, partial(_ours, name)), "built-in") for name in MODULES}
_registered: dict[str, DeviceEntry] = {}
_loaded: dict[str, DeviceEntry] = {}
_made: dict[str, tuple[DeviceEntry, Implementation]] = {}
_lock = threading.RLock()


def names() -> list[str]:
    """All: ours, then other packages', then those that the program registered."""
    with _lock:
        return list(dict.fromkeys((*MODULES, *sorted(installed_implementations()), *_registered)))


def registered() -> list[str]:
    """Those that the program registered."""
    with _lock:
        return list(_registered)


def entry(name: str) -> DeviceEntry:
    """What a name is registered as. NotRegisteredError, a LookupError, where there is none; RegistrationFailedError
    where the package that offers it does not load.
    """
    with _lock:
        known = _OURS.get(name) or _registered.get(name) or _loaded.get(name)
        if known is None:
            point = installed_implementations().get(name)
            if point is None:
                raise NotRegisteredError(f"there is no device {name!r}{did_you_mean(name, names())}")
            known = _loaded[name] = _load(point)
        return known


def _load(point: EntryPoint) -> DeviceEntry:
    package = "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    where = f"{point.name!r} of {package} ({IMPLEMENTATIONS_GROUP}: {point.value})"
    try:
        config = point.load()
    except Exception as error:
        raise RegistrationFailedError(f"{where} does not load: {type(error).__name__}: {error}") from error
    if not isinstance(config, DeviceConfig):
        raise RegistrationFailedError(f"{where} is {config!r}, and has to be a DeviceConfig")
    if config.name != point.name:
        raise RegistrationFailedError(f"{where} calls itself {config.name!r}: the two names have to be one")
    return DeviceEntry(config, package)


def register(config: DeviceConfig) -> None:
    """Adds a device to those that can be asked for. AlreadyRegisteredError where its name is taken."""
    if not isinstance(config, DeviceConfig):
        raise InvalidConfigError(f"register_device takes a DeviceConfig, not {config!r}")
    with _lock:
        if config.name in names():
            raise AlreadyRegisteredError(
                f"a device {config.name!r} is registered already ({entry(config.name).origin}): choose another name, "
                "or unregister it first"
            )
        _registered[config.name] = DeviceEntry(config, "registered")


def unregister(name: str) -> None:
    """Takes away what :func:`register` added. NotRegisteredError where there is none, InvalidConfigError for a name
    that is ours or a package's.
    """
    with _lock:
        if name in _registered:
            del _registered[name]
            _made.pop(name, None)
            return
        origin = entry(name).origin
    raise InvalidConfigError(f"the device {name!r} is not the program's to unregister: it is from {origin}")


def implementation(name: str) -> Implementation:
    """An implementation by its name. Raises ImportError or OSError where its library does not load,
    RegistrationFailedError where another package's does not start, NotRegisteredError where there is none.
    """
    with _lock:
        known = entry(name)
        made = _made.get(name)
        if made is not None and made[0] is known:
            return made[1]
        if known.origin == "built-in":
            library = known.config.initialize()
        else:
            try:
                library = known.config.implementation()
            except Exception as error:
                raise RegistrationFailedError(
                    f"the device {name!r} ({known.origin}) does not start: {type(error).__name__}: {error}"
                ) from error
        _made[name] = known, library
        return library


def advice(name: str) -> str:
    """What to do where an implementation does not load."""
    if name in INSTALL:
        return f"Try: {INSTALL[name]}"
    return "That is for the package that offers it to mend; TORCH_WEBGPU_IMPLEMENTATION=auto uses another"
