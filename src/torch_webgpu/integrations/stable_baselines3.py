"""Stable-Baselines3: ``device="auto"``, the default of every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from torch_webgpu.patching import Patches

from .choice import instead_of_cpu

PATCHES = Patches()


@PATCHES.add(
    "stable_baselines3.common.utils", "get_device", upstream="https://github.com/DLR-RM/stable-baselines3/issues/914"
)
def device(plain: Callable[..., torch.device]) -> Callable[..., torch.device]:
    """``"auto"`` means CUDA or the CPU."""

    @wraps(plain)
    def get_device(device: torch.device | str = "auto") -> torch.device:
        found = plain(device)
        return instead_of_cpu(found) if device == "auto" else found

    return get_device
