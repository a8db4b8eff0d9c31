"""How a library is patched: when it is imported, never earlier, never if it is not.

A patch names what it replaces and makes the replacement from it; its docstring says why.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch_webgpu.on_import import Action


@dataclass
class Patch:
    """One replacement in one module.

    ``target`` is a function's name or ``Class.attribute``; "" for what is only registered with the library, by its own
    means. ``make`` gets what is there (the module itself for ""), and returns what takes its place. ``upstream`` is
    where the library's own change is discussed. ``plain`` is what was replaced, once it was.
    """

    module: str
    target: str
    make: Callable[[Any], Any]
    upstream: str
    plain: Any = None

    @property
    def reason(self) -> str:
        return self.make.__doc__ or ""

    def apply(self, module: ModuleType, late: bool) -> None:
        """Puts it in place, ``late`` in the other modules that have taken the function from this one, too."""
        if not self.target:
            self.plain = module
            self.make(module)
            return
        *path, name = self.target.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        self.plain = vars(owner)[name]
        if getattr(self.plain, "from_torch_webgpu", False):  # taken from a module that was patched already
            return
        ours = self.make(self.plain)
        if callable(ours):
            ours.from_torch_webgpu = True
        setattr(owner, name, ours)
        if late and not path:
            _rebind(self.plain, ours)


def _rebind(plain: Any, ours: Any) -> None:
    """Replaces what ``from library import function`` has put into other modules."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name in [name for name, value in list(names.items()) if value is plain]:
                names[name] = ours


class Patches(list[Patch]):
    """The patches of one library, in the file that is about it."""

    def add(self, modules: str | Iterable[str], target: str = "", *, upstream: str) -> Callable[[Any], Any]:
        """Decorates a patch's ``make``. With several modules, each that the library has is patched."""

        def decorate(make: Any) -> Any:
            names = [modules] if isinstance(modules, str) else modules
            self.extend(Patch(name, target, make, upstream) for name in names)
            return make

        return decorate


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
