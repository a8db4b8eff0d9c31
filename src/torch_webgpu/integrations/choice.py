"""Whether a library that looks for an accelerator should take webgpu, and which of its adapters."""

from __future__ import annotations

import torch

from torch_webgpu.api.device import device_count, get_device_properties, is_available
from torch_webgpu.engine.current import current_device


def webgpu_device() -> torch.device | None:
    """The current adapter, if webgpu is the accelerator to take here; None where PyTorch has one of its own."""
    if torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available():
        return None
    current = torch.accelerator.current_accelerator()
    if current is None or current.type != "webgpu" or not is_available():
        return None
    return torch.device("webgpu", current_device())


def instead_of_cpu(device: torch.device) -> torch.device:
    """What a library chose, unless it chose the CPU for want of an accelerator."""
    return device if device.type != "cpu" else webgpu_device() or device


def adapters_alike() -> list[int]:
    """The adapters of the first one's model: what a library takes that takes "all" GPUs to train on, one rank on each.

    Ranks wait for the slowest: an integrated GPU or a software adapter beside the first would only hold it up.
    """
    models = [(p.name, p.adapter_type) for p in map(get_device_properties, range(device_count()))]
    return [index for index, model in enumerate(models) if model == models[0]]
