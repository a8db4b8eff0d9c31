"""Diffusers asks ``torch.accelerator`` for the device: only its list of devices without float64 needs ours.

It asks once, and remembers. Where it was imported first, it asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType

import torch

from torch_webgpu.api.device import index_of
from torch_webgpu.engine.record import engine
from torch_webgpu.patching import Patches

UPSTREAM = "https://github.com/huggingface/diffusers"

PATCHES = Patches()


@PATCHES.add("diffusers.utils.torch_utils", "maybe_adjust_dtype_for_device", upstream=UPSTREAM)
def narrower(plain: Callable[..., torch.dtype]) -> Callable[..., torch.dtype]:
    """Positions and frequencies are float64 except on devices of a list of names; many adapters have no float64."""

    @wraps(plain)
    def maybe_adjust_dtype_for_device(dtype: torch.dtype, device: torch.device) -> torch.dtype:
        if dtype == torch.float64 and device.type == "webgpu" and not engine().device(index_of(device)).target.float64:
            return torch.float32
        return plain(dtype, device)

    return maybe_adjust_dtype_for_device


@PATCHES.add("diffusers.utils.torch_utils", upstream=UPSTREAM)
def ask_again(module: ModuleType) -> None:
    """The device that was there when Diffusers was imported is the one it goes on with."""
    detect = module.TorchDeviceBackend._detect_device_type
    if detect() == "cpu":
        detect.cache_clear()
        module.torch_device = module.get_device()  # type: ignore[attr-defined]


@PATCHES.add("diffusers.pipelines.pipeline_utils", upstream=UPSTREAM)
def take_as_device_map(module: ModuleType) -> None:
    """So are the values that ``from_pretrained(…, device_map=…)`` takes."""
    if module.get_device() not in module.SUPPORTED_DEVICE_MAP:
        module.SUPPORTED_DEVICE_MAP.append(module.get_device())
