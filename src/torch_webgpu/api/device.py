"""Which adapters there are, which one is current, and waiting for them, in torch.cuda's spelling."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torch_webgpu.engine.current import current_device, set_current_device
from torch_webgpu.engine.record import engine
from torch_webgpu.engine.sync import synchronize as _synchronize
from torch_webgpu.errors import FlagError, NoAdapterError
from torch_webgpu.runtime.runtime import devices

from .adapter_memory import adapter_memory
from .records import Record

DeviceLike = torch.device | str | int | None


@cache
def _unusable(reason: str) -> None:
    """Says once why there are no devices where there might be."""
    warnings.warn(f"webgpu is not available: {reason}", stacklevel=4)


def is_available() -> bool:
    """Whether this machine has a usable WebGPU adapter (a software one counts).

    Neither this nor :func:`device_count` raises: programs for the CPU ask, too. What is wrong with the environment's
    flags is a warning here, and an error where the device is used.
    """
    return device_count() > 0


def is_initialized() -> bool:
    """Always true: adapters are opened by themselves at their first use."""
    return True


def init() -> None:
    """Nothing to do; here because torch.cuda has it."""


def lazy_init() -> None:
    """Nothing to do: PyTorch before 2.12 looks for this function whenever it makes a tensor, until it has found it."""


def device_count() -> int:
    """The number of adapters, ``webgpu:0`` being the best one."""
    try:
        return len(devices())
    except (FlagError, NoAdapterError) as error:
        _unusable(str(error))
        return 0


def index_of(device: DeviceLike) -> int:
    """The adapter index a device argument names; the current one for None and a bare ``"webgpu"``."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "webgpu":
            raise ValueError(f"expected a webgpu device, but got: {device}")
        index = current_device() if device.index is None else device.index
    if not 0 <= index < max(device_count(), 1):
        raise RuntimeError(f"webgpu:{index} does not exist: this machine has {device_count()} WebGPU adapter(s)")
    return index


at_other_adapter: list[Callable[[], None]] = []
"""What to do when another adapter than the first becomes current for the first time."""


@cache
def use_other_adapters() -> None:
    """Prepares PyTorch's functions for it, once."""
    for call in at_other_adapter:
        call()


def set_device(device: DeviceLike) -> None:
    """Makes an adapter the current one in this thread. A negative index changes nothing, as in torch.cuda."""
    if isinstance(device, int) and device < 0:
        return
    index = index_of(device)
    if index:
        use_other_adapters()
    set_current_device(index)


class device:  # noqa: N801 torch.cuda's name
    """Context manager: makes an adapter current inside the block. A negative index or None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        unchanged = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if unchanged else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        if self.idx >= 0:
            set_device(self.idx)

    def __exit__(self, *exc: Any) -> None:
        set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager: makes the adapter of a tensor current; nothing for a tensor that is elsewhere."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device.index if obj.device.type == "webgpu" else -1)


@dataclass(frozen=True)
class DeviceProperties:
    """What is known of an adapter. Sizes in bytes; ``total_memory`` is 0 where nobody tells. ``implementation``: whose
    WebGPU it is, "wgpu" or "dawn".
    """

    name: str
    vendor: str
    architecture: str
    description: str
    adapter_type: str
    backend_type: str
    implementation: str
    driver: str
    total_memory: int
    max_buffer_size: int
    max_binding_size: int
    max_workgroup_storage: int
    max_workgroup_invocations: int
    features: tuple[str, ...]


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """The adapter's identity and limits."""
    index = index_of(device)
    gpu, memory = engine().device(index), adapter_memory(index)
    info, limits = gpu.info, gpu.limits
    return DeviceProperties(
        name=gpu.name,
        vendor=info.get("vendor", ""),
        architecture=info.get("architecture", ""),
        description=info.get("description", ""),
        adapter_type=info.get("adapter_type", ""),
        backend_type=info.get("backend_type", ""),
        implementation=gpu.implementation,
        driver=info.get("description", ""),
        total_memory=0 if memory is None else memory.total,
        max_buffer_size=limits["max-buffer-size"],
        max_binding_size=limits["max-storage-buffer-binding-size"],
        max_workgroup_storage=limits["max-compute-workgroup-storage-size"],
        max_workgroup_invocations=limits["max-compute-invocations-per-workgroup"],
        features=tuple(sorted(gpu.features)),
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The adapter's name, as its driver gives it."""
    return engine().device(index_of(device)).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """(1, 0): WebGPU has one version; what an adapter can do is in :func:`get_capabilities`."""
    index_of(device)
    return (1, 0)


def get_capabilities(device: DeviceLike = None) -> Record:
    """``{"features": [...], "limits": {...}, "info": {...}}``; limits in WebGPU's spelling (``maxBufferSize``).

    Entries are attributes, too: ``get_capabilities().limits.maxBufferSize``.
    """
    found = engine().device(index_of(device))
    limits = Record({_camel(name): value for name, value in found.limits.items()})
    return Record(features=sorted(found.features), limits=limits, info=Record(found.info))


getCapabilities = get_capabilities  # noqa: N816 WebGPU's spelling


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join({"x": "X", "y": "Y", "z": "Z"}.get(part, part.capitalize()) for part in rest)


def synchronize(device: DeviceLike = None) -> None:
    """Submits what is recorded and waits for it. Errors of the work so far are raised here at the latest."""
    _synchronize(index_of(device))


sync_device = synchronize


def reset_device(device: DeviceLike = None) -> None:
    """Opens an adapter anew, also after it was lost (``DeviceLostError``).

    Its tensors are lost with what they held: using one raises DeviceLostError. New ones work.
    """
    engine().reset(index_of(device))


def get_arch_list() -> list[str]:
    """Empty: kernels are compiled by the adapter's own driver, when they are first used."""
    return []


def get_gencode_flags() -> str:
    """Empty, as :func:`get_arch_list`."""
    return ""


def is_tf32_supported() -> bool:
    """False: float32 is computed in float32."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is stored as such and computed in float32 (WGSL has no bfloat16 arithmetic)."""
    return including_emulation


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """False: WebGPU adapters do not see each other's memory; copies between them go through the host."""
    index_of(device), index_of(peer_device)
    return False


def ipc_collect() -> None:
    """Nothing to do: WebGPU memory is not shared between processes."""


def is_in_bad_fork() -> bool:
    from os import getpid

    from torch_webgpu.engine.record import started_in

    return started_in() not in (None, getpid())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes ``torch.autocast("webgpu")`` takes."""
    return [torch.float16, torch.bfloat16]
