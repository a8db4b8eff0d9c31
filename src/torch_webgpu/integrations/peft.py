"""Hugging Face PEFT: the device on which an adapter's weights are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from torch_webgpu.patching import Patches

from .choice import instead_of_cpu

PATCHES = Patches()


@PATCHES.add("peft.utils.other", "infer_device", upstream="https://github.com/huggingface/peft")
def device(plain: Callable[[], str]) -> Callable[[], str]:
    """Adapters are read to the first backend of a list of names that is there, else to the CPU."""

    @wraps(plain)
    def infer_device() -> str:
        return instead_of_cpu(torch.device(plain())).type

    return infer_device
