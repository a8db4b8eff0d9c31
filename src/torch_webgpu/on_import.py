"""Patches of modules that a program may import later: importing them for it would cost every program the time.

A finder on ``sys.meta_path`` watches those yet to come. Those that are there are handed over at once, or when they
end, if they are in the middle of their import: it may be they that import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType, bool], None]
"""What is done with a complete module. True for one that others may have taken names from already."""

Find = Callable[[str], Action | None]
"""What to do with the module of this name, if anything."""


class _Watched(ModuleSpec):
    """The spec of a module that is being imported: importlib clears ``_initializing`` when it ends, well or not."""

    @property
    def _initializing(self) -> bool:
        return bool(vars(self).get("_initializing", False))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        module = sys.modules.get(self.name)
        if not value and module is not None:
            for action, late in vars(self)["at_the_end"]:
                action(module, late)


def _watch(spec: Any, action: Action, late: bool) -> None:
    if type(spec) is ModuleSpec:
        spec.__class__ = _Watched
        vars(spec)["at_the_end"] = []
    if type(spec) is _Watched:
        vars(spec)["at_the_end"].append((action, late))


def find_after(
    finder: MetaPathFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the finders that come after this one find. Those before it may ask it in the same way."""
    others = sys.meta_path[sys.meta_path.index(finder) + 1 :] if finder in sys.meta_path else sys.meta_path
    return next((spec for other in others if (spec := other.find_spec(name, path, target)) is not None), None)


class Watcher(MetaPathFinder):
    """Lets imports go on as usual, and acts on what comes of those that are waited for."""

    def __init__(self) -> None:
        self.finds: dict[str, list[Find]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        finds = self.finds.get(name.partition(".")[0])
        actions = [action for find in finds if (action := find(name)) is not None] if finds else []
        if not actions:
            return None
        spec = find_after(self, name, path, target)
        if spec is not None:
            for action in actions:
                _watch(spec, action, late=False)
        return spec

    def watch(self, package: str, find: Find) -> None:
        """From now on, and at once: does what ``find`` says with the modules in ``package``, and with itself."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self.finds.setdefault(package, []).append(find)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            if (action := find(name)) is None:
                continue
            module = sys.modules[name]
            if getattr(module.__spec__, "_initializing", False):
                _watch(module.__spec__, action, late=True)
            else:
                action(module, True)


_watcher = Watcher()
watch = _watcher.watch


def when_imported(name: str, patch: Callable[[ModuleType], None]) -> None:
    """Calls ``patch(module)`` as soon as the module ``name`` is imported; now, if it is."""
    watch(name.partition(".")[0], lambda found: (lambda module, late: patch(module)) if found == name else None)
