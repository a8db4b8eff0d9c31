"""``device="webgpu"`` for safetensors, which checks device names against a list of its own.

``safetensors.safe_open`` takes any accelerator by its number, so a webgpu device is handed over as one
(https://github.com/huggingface/safetensors, ``Device`` in bindings/python/src/lib.rs). The package is patched when it
is imported, or now if it is already: it may be what imported torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

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


class PatchOnImport(importlib.abc.MetaPathFinder):
    """Lets the import of safetensors go on as usual, and patches what comes of it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Puts the patch in place, now or at the import."""
    loaded = [sys.modules.get(name) for name in (PACKAGE, f"{PACKAGE}.torch")]
    for module in loaded:
        if hasattr(module, "safe_open"):
            patch(module)  # type: ignore[arg-type]
    if loaded[0] is None:
        sys.meta_path.insert(0, PatchOnImport())
