"""Diffusers: it asks ``torch.accelerator`` for the device; only its list of devices without float64 needs ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from torch_webgpu.api.device import index_of
from torch_webgpu.engine.record import engine

from .patching import Patches

PATCHES = Patches()


@PATCHES.add(
    "diffusers.utils.torch_utils", "maybe_adjust_dtype_for_device", upstream="https://github.com/huggingface/diffusers"
)
def narrower(plain: Callable[..., torch.dtype]) -> Callable[..., torch.dtype]:
    """Positions and frequencies are float64 except on devices of a list of names; many adapters have no float64."""

    @wraps(plain)
    def maybe_adjust_dtype_for_device(dtype: torch.dtype, device: torch.device) -> torch.dtype:
        if dtype == torch.float64 and device.type == "webgpu" and not engine().device(index_of(device)).caps.float64:
            return torch.float32
        return plain(dtype, device)

    return maybe_adjust_dtype_for_device
