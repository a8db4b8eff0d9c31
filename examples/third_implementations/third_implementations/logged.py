"""wgpu-native, with every call logged and counted.

The logger is ``third_implementations.logged``, its level DEBUG. ``LOGGED_CALLS=FILE`` writes the log to a file.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.webgpu import registry

CALLS: Counter[str] = Counter()
"""How often each call was made, on all devices."""

log = logging.getLogger(__name__)
if "LOGGED_CALLS" in os.environ:
    log.addHandler(logging.FileHandler(os.environ["LOGGED_CALLS"]))
    log.setLevel(logging.DEBUG)
    log.propagate = False


class LoggedDevice(registry.ForwardingDevice):
    """A device that logs each call before it makes it."""

    def __init__(self, native: registry.NativeDevice) -> None:
        super().__init__(native)
        for name in registry.NATIVE_CALLS:
            setattr(self, name, partial(logged, name, getattr(native, name)))


def logged(name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``call`` returns."""
    CALLS[name] += 1
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s(%s)", name, ", ".join([*map(short, args), *(f"{key}={short(kwargs[key])}" for key in kwargs)]))
    return call(*args, **kwargs)


def short(value: object) -> str:
    """A value on one line: WGSL and data are long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def start() -> registry.Implementation:
    """The implementation."""
    base = registry.get_device_config("wgpu").initialize()
    return registry.ForwardingImplementation("logged", base, LoggedDevice)


CONFIG = registry.DeviceConfig("logged", start)
