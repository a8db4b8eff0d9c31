"""Whether a library that looks for an accelerator should take webgpu."""

from __future__ import annotations

import torch

from torch_webgpu.api.device import is_available
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
