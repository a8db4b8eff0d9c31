"""Which devices there are and what they can do, for targets that have one device or do not tell all of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import takewhile
from typing import Any

import torch

from torch_webgpu.runtime.host_memory import machine_memory

from .target import HERE, Around, DeviceLike, local_name

CAPABILITY = (8, 0)
"""What every target is said to be: the first generation of CUDA devices that has bfloat16. Programs ask for it to
choose bfloat16, compiled code and fused attention, which are here; what came later (float8) is not."""


def device_count() -> int:
    """The number of target devices."""
    return HERE.count


def is_available() -> bool:
    """Whether there is one."""
    return HERE.count > 0


def visible_device_count() -> int:
    """:func:`device_count`, or fewer if CUDA_VISIBLE_DEVICES lists fewer. The list ends before an empty place or -1."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return HERE.count
    shown = list(takewhile(lambda entry: entry not in ("", "-1"), map(str.strip, listed.split(","))))
    return min(HERE.count, len(shown))


def visible_is_available() -> bool:
    """Whether there is one that CUDA_VISIBLE_DEVICES lets be seen: "" and "-1" hide all."""
    return visible_device_count() > 0


def is_initialized() -> bool:
    """True: the device needs no start-up."""
    return True


def init() -> None:
    """Nothing is left to do."""


def current_device() -> int:
    """The index of the current device."""
    return HERE.current


def set_device(device: DeviceLike) -> None:
    """Accepts the devices that there are; a negative index changes nothing, as in torch.cuda."""
    if not (isinstance(device, int) and device < 0):
        HERE.index(device)


class device:  # noqa: N801 torch.cuda's name
    """Context manager for the one device there is: checks the index."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else HERE.index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = HERE.current

    def __exit__(self, *exc: Any) -> None:
        return None


class device_of(device):  # noqa: N801 torch.cuda's name
    """The same for the device of a tensor."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == HERE.type else -1)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for the device."""
    HERE.index(device)
    HERE.synchronize()


@Around
def accelerator_synchronize(plain: Callable[..., None]) -> Callable[..., None]:
    """``torch.accelerator.synchronize("cuda")``, which is what compiled graphs make of ``torch.cuda.synchronize()``."""

    @wraps(plain)
    def synchronize(device: Any = None) -> None:
        named = local_name(device)
        if not (isinstance(named, (str, torch.device)) and torch.device(named).type == "cpu"):
            plain(named)

    return synchronize


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """False: devices do not see each other's memory here."""
    HERE.index(device), HERE.index(peer_device)
    return False


def get_device_name(device: DeviceLike = None) -> str:
    """The chip's name, as the operating system tells it."""
    HERE.index(device)
    name = getattr(torch.backends.mps, "get_name", None) if HERE.type == "mps" else None
    return str(name()) if name is not None else _processor_name()


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """:data:`CAPABILITY`, whatever the device: see there."""
    HERE.index(device)
    return CAPABILITY


@dataclass(frozen=True)
class DeviceProperties:
    """``torch.cuda.get_device_properties``'s fields; sizes in bytes. A number that nobody tells is 0."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    native: Any = None
    """The target's own properties; what is not here is looked up there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(object.__getattribute__(self, "native"), name)
        except AttributeError:
            raise AttributeError(f"{HERE.type} does not tell {name!r} of its devices") from None


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """What the target tells of a device, under torch.cuda's names."""
    index = HERE.index(device)
    if HERE.type in ("webgpu", "xpu"):
        native = HERE.module.get_device_properties(index)
        software = getattr(native, "adapter_type", "") == "CPU"
        units = getattr(native, "max_compute_units", (os.cpu_count() or 0) if software else 0)
        return DeviceProperties(native.name, native.total_memory, units, native=native)
    if HERE.type == "mps":
        cores = getattr(torch.backends.mps, "get_core_count", lambda: 0)()
        return DeviceProperties(get_device_name(), torch.mps.recommended_max_memory(), cores, is_integrated=1)
    memory = machine_memory()
    return DeviceProperties(get_device_name(), memory.total if memory else 0, os.cpu_count() or 0)


def get_core_count() -> int:
    """The device's processors, 0 if nobody tells."""
    return get_device_properties().multi_processor_count


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Whether this is macOS, of that version at least."""
    version = platform.mac_ver()[0]
    return bool(version) and tuple(map(int, version.split(".")))[:2] >= (major, minor)


def is_macos13_or_newer(minor: int = 0) -> bool:
    """Whether this is macOS 13, or a newer one."""
    return is_macos_or_newer(13, minor)


def get_arch_list() -> list[str]:
    """None: no kernels are compiled beforehand."""
    return []


def get_gencode_flags() -> str:
    """None, for the same reason."""
    return ""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors can be computed with: tried."""
    try:
        x = torch.ones(1, dtype=torch.bfloat16, device=HERE.type)
        return bool((x + x).item() == 2)
    except (RuntimeError, TypeError):
        return False


def is_tf32_supported() -> bool:
    """False: TF32 is a number format of NVIDIA's tensor cores."""
    return False


def ipc_collect() -> None:
    """Nothing is shared between processes."""
