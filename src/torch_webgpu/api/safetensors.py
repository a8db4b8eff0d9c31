"""``device="webgpu"`` for safetensors, which checks device names against a list of its own.

``safetensors.safe_open`` takes any accelerator by its number, so a webgpu device is handed over as one
(https://github.com/huggingface/safetensors, ``Device`` in bindings/python/src/lib.rs). The package is patched when it
is imported, or now if it is already: it may be what imported torch.
"""

from __future__ import annotations

import sys
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from torch_webgpu.on_import import when_imported

PACKAGE = "safetensors"


def by_number(device: Any) -> Any:
    """A webgpu device as its index; anything else as it is."""
    if isinstance(device, (str, torch.device)) and str(device).split(":")[0] == "webgpu":
        return torch.device(device).index or 0
    return device


def patch(module: ModuleType) -> None:
    plain = module.safe_open

    @wraps(plain, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        return plain(filename, framework, device=by_number(device), **options)

    module.safe_open = safe_open  # type: ignore[attr-defined]


def register() -> None:
    """Puts the patch in place, now or at the import."""
    loaded = sys.modules.get(f"{PACKAGE}.torch")  # has a name of its own for it
    if hasattr(loaded, "safe_open"):
        patch(loaded)  # type: ignore[arg-type]
    when_imported(PACKAGE, patch)
