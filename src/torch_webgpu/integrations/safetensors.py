"""``device="webgpu"`` for safetensors, which checks device names against a list of its own.

``safetensors.safe_open`` takes any accelerator by its number, so a webgpu device is handed over as one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from torch_webgpu.patching import Patches

PATCHES = Patches()


def by_number(device: Any) -> Any:
    """A webgpu device as its index; anything else as it is."""
    if isinstance(device, (str, torch.device)) and str(device).split(":")[0] == "webgpu":
        return torch.device(device).index or 0
    return device


@PATCHES.add("safetensors", "safe_open", upstream="https://github.com/safetensors/safetensors/pull/804")
def open_by_number(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A device is a name of a list, or a number."""

    @wraps(plain, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        return plain(filename, framework, device=by_number(device), **options)

    return safe_open
