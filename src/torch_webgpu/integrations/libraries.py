"""Which module here is about which library, and its patches, which are applied when the library is imported.

Never earlier, and never if it is not.
"""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

from torch_webgpu.on_import import Action
from torch_webgpu.patching import Patch


class Libraries:
    """Packages, and for each the module of ours about it, with its ``PATCHES``."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.modules = modules

    def patches(self, module: str) -> list[Patch]:
        """Those of one module of a library; loads ours about the library."""
        ours = self.modules.get(module.partition(".")[0])
        if ours is None:
            return []
        return [patch for patch in importlib.import_module(ours).PATCHES if patch.module == module]

    def find(self, module: str) -> Action | None:
        """What to do with a library's module once it is complete (for :func:`torch_webgpu.on_import.watch`)."""
        return self.apply if self.patches(module) else None

    def apply(self, module: ModuleType, late: bool) -> None:
        """Patches it; ``late``: other modules may have taken names from it already."""
        for patch in self.patches(module.__name__):
            _apply(patch, module, late)


def _apply(patch: Patch, module: ModuleType, late: bool) -> None:
    """A library that has changed stays as it is, with a warning."""
    try:
        patch.apply(module, late)
    except (AttributeError, LookupError, TypeError) as error:
        warnings.warn(
            f"torch_webgpu does not fit this version of {module.__name__.partition('.')[0]}, which may not find the "
            f"device by itself: {patch.module}.{patch.target}: {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
