"""Patches of modules that a program may import later: importing them for it would cost every program the time."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Patch = Callable[[ModuleType], None]


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Lets imports go on as usual, and patches what comes of those that are waited for."""

    def __init__(self) -> None:
        self.waiting: dict[str, Patch] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        patch = self.waiting.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _PatchingFinder()


def when_imported(name: str, patch: Patch) -> None:
    """Calls ``patch(module)`` as soon as the module ``name`` is imported; now, if it is."""
    module = sys.modules.get(name)
    if module is not None:
        patch(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting[name] = patch
