"""A WebGPU implementation as a value: what a program or a package registers to have its devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from torch_webgpu.errors import InvalidConfigError, RegistrationFailedError, did_you_mean

from .forwarding import NATIVE_CALLS, ForwardingDevice, ForwardingImplementation
from .implementation import Adapter, Implementation, NativeDevice

HOOKS = {
    "create_buffer": "create_buffer",
    "write_buffer": "write_buffer",
    "read_buffer": "map",
    "dispatch": "dispatch_workgroups",
    "sync": "poll",
}
"""Which call of a :class:`NativeDevice` each function of a :class:`DeviceConfig` takes the place of."""
INFO = (
    "vendor", "architecture", "device", "description", "vendor_id", "device_id", "adapter_type", "backend_type",
    "subgroup_min_size", "subgroup_max_size",
)  # fmt: skip
LIMITS = (
    "max-buffer-size", "max-storage-buffer-binding-size", "max-storage-buffers-per-shader-stage",
    "max-compute-workgroups-per-dimension", "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup", "min-storage-buffer-offset-alignment",
    "min-uniform-buffer-offset-alignment",
)  # fmt: skip
"""What an adapter has to say of itself."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True)
class DeviceCapabilities:
    """What adapters may offer at most: they are described, and opened, as if they had no more.

    ``features``: wgpu's names, such as "shader-f16"; None keeps all. ``limits``: WebGPU's names in kebab case, such as
    "max-buffer-size", in bytes or counts. A limit that an adapter lacks, or has less of, stays as it is.
    """

    features: frozenset[str] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.features is not None:
            object.__setattr__(self, "features", frozenset(self.features))
        for name, limit in self.limits.items():
            if not isinstance(limit, int) or limit < 0:
                raise InvalidConfigError(f"limits[{name!r}] is {limit!r}, and has to be a number of bytes, or a count")

    def of(self, adapter: Adapter) -> Adapter:
        """An adapter that offers no more than this. InvalidConfigError for a limit that WebGPU does not know."""
        limits = dict(adapter.limits)
        for name, most in self.limits.items():
            if name not in limits:
                raise InvalidConfigError(f"there is no limit {name!r}{did_you_mean(name, limits)}")
            limits[name] = min(most, limits[name])
        features = adapter.features if self.features is None else adapter.features & self.features
        return replace(adapter, features=features, limits=limits)


@dataclass(frozen=True)
class DeviceConfig:
    """A WebGPU implementation under a name.

    Args:
        name: small letters, digits, ``-`` and ``_``; what ``TORCH_WEBGPU_IMPLEMENTATION`` and the doctor call it.
        initialize: returns the ``Implementation``; called once, when the device is first needed.
        capabilities: what its adapters offer at most.
        create_buffer: ``(native, size_bytes, usage) -> buffer``, in the place of that call.
        write_buffer: ``(native, buffer, offset, data) -> None``
        read_buffer: ``(native, buffer, size_bytes) -> memory``, valid until ``unmap``, or None on errors.
        dispatch: ``(native, compute_pass, x, y, z) -> None``, which encodes a dispatch.
        sync: ``(native, wait) -> None``, which runs the callbacks that are due.
        calls: functions in the place of other calls of a ``NativeDevice``, by the call's name.

    Each function gets the ``NativeDevice`` that ``initialize``'s implementation opened, whose own call it may make. It
    does not raise: what goes wrong it leaves in ``native.sink.errors`` as ``(kind, message)``, where kind is
    "validation", "out of memory" or "internal", and returns what may be released.

    Raises InvalidConfigError, a ValueError, for a name that cannot be one, and for functions that are none.
    """

    name: str
    initialize: Callable[[], Implementation]
    capabilities: DeviceCapabilities | None = None
    create_buffer: Callable[..., Any] | None = None
    write_buffer: Callable[..., Any] | None = None
    read_buffer: Callable[..., Any] | None = None
    dispatch: Callable[..., Any] | None = None
    sync: Callable[..., Any] | None = None
    calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name == "auto":
            raise InvalidConfigError(
                f"{self.name!r} cannot be the name of a device: it has to be of small letters, digits, - and _, and "
                "not 'auto'"
            )
        if not callable(self.initialize):
            raise InvalidConfigError(f"initialize of {self.name!r} is {self.initialize!r}, and has to be a function")
        for call in self.calls:
            if call not in NATIVE_CALLS:
                raise InvalidConfigError(f"a device has no call {call!r}{did_you_mean(call, NATIVE_CALLS)}")
        for one in fields(self):
            hook = getattr(self, one.name)
            if one.name in HOOKS and hook is not None and not callable(hook):
                raise InvalidConfigError(f"{one.name} of {self.name!r} is {hook!r}, and has to be a function, or None")
        if twice := sorted(set(self.calls).intersection(self._hooked())):
            raise InvalidConfigError(f"{self.name!r} has two functions for {', '.join(twice)}")

    def _hooked(self) -> dict[str, Callable[..., Any]]:
        """The functions of the fields, by the call that they take the place of."""
        return {call: hook for name, call in HOOKS.items() if (hook := getattr(self, name)) is not None}

    def implementation(self) -> Implementation:
        """What ``initialize`` returns, with the rest of this. Raises what ``initialize`` raises, and
        InvalidConfigError where that returns no implementation.
        """
        base = self.initialize()
        lacking = [name for name in ("dialect", "version", "adapters", "open") if not hasattr(base, name)]
        if lacking:
            raise InvalidConfigError(
                f"initialize of {self.name!r} returned {base!r}, which is no Implementation: it has no "
                f"{', '.join(lacking)}"
            )
        hooks = {**self._hooked(), **self.calls}
        return _Configured(self.name, base, partial(_hooked_device, hooks), self._described)

    def _described(self, adapter: Adapter) -> Adapter:
        """The adapter, if it says of itself what it has to."""
        for what, names, there in (("info", INFO, adapter.info), ("limits", LIMITS, adapter.limits)):
            if missing := [name for name in names if name not in there]:
                raise InvalidConfigError(f"an adapter of {self.name!r} lacks in its {what}: {', '.join(missing)}")
        return adapter if self.capabilities is None else self.capabilities.of(adapter)


class _Configured(ForwardingImplementation):
    """Somebody else's implementation, whose errors are not the caller's."""

    def adapters(self) -> list[Adapter]:
        try:
            return super().adapters()
        except Exception as error:
            raise RegistrationFailedError(
                f"the device {self.name!r} cannot list its adapters: {type(error).__name__}: {error}"
            ) from error


def _hooked_device(hooks: Mapping[str, Callable[..., Any]], native: NativeDevice) -> NativeDevice:
    """The device with some calls replaced."""
    if not hooks:
        return native
    forward: Callable[[NativeDevice], NativeDevice] = ForwardingDevice
    device = forward(native)
    for call, hook in hooks.items():
        setattr(device, call, partial(_call, hook, native))
    return device


def _call(hook: Callable[..., Any], native: NativeDevice, *args: Any, **kwargs: Any) -> Any:
    """Calls a function with positions only, however the runtime calls the device."""
    return hook(native, *args, *kwargs.values())
