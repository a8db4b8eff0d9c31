"""Patches: replacements of what other packages define, as rows of a list.

A row names what is replaced, says why, and what the package would have to offer for the row to go. It is applied when
its module is there, never earlier: importing a module to patch it would cost every program the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .on_import import Action, watch

Make = Callable[..., Any]
"""Makes of what is there, its only argument, what takes its place."""
CHANGEABLE = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: the flag of classes whose attributes can be set, but for those that say otherwise."""


@dataclass
class Patch:
    """One replacement in one module.

    ``target`` is a function's name or ``Class.attribute``; "" for what ``make`` replaces or registers by itself, which
    ``what`` then says. ``make`` gets what is there (the module itself for ""), and returns what takes its place.
    ``upstream`` is where the package's own change is discussed, None where nobody is known to; ``needs`` what the
    package would have to offer; ``versions`` those of the package that it is tested with. ``plain`` is what was
    replaced, once it was.
    """

    module: str
    target: str
    make: Make
    reason: str
    upstream: str | None
    needs: str = ""
    versions: str = ""
    what: str = ""
    plain: Any = None

    @property
    def name(self) -> str:
        """What is replaced, in words that no other row of a list has."""
        return f"{self.module}.{self.target}" if self.target else f"{self.module}: {self.what}"

    def apply(self, module: ModuleType, late: bool = False) -> None:
        """Puts it in place, ``late`` in the other modules that have taken the function from this one, too."""
        if not self.target:
            if self.plain is not module:
                self.make(module)
            self.plain = module
            return
        *path, name = self.target.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        plain = attribute(owner, name)
        if getattr(plain, "from_torch_webgpu", False):  # done, or taken from a module that was patched already
            return
        self.plain = plain
        ours = self.make(plain)
        if callable(ours):
            ours.from_torch_webgpu = True
        setattr(owner, name, ours)
        if late and not path:
            _rebind(plain, ours)


def attribute(owner: Any, name: str) -> Any:
    """What a module or class defines under a name, or inherits from a class written in C, which cannot be changed."""
    fixed = [base for base in getattr(owner, "__mro__", ()) if not base.__flags__ & CHANGEABLE]
    for holder in (owner, *fixed):
        if name in vars(holder):
            return vars(holder)[name]
    raise AttributeError(f"{getattr(owner, '__name__', owner)} has no attribute {name!r}")


def _rebind(plain: Any, ours: Any) -> None:
    """Replaces what ``from library import function`` has put into other modules."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name in [name for name, value in list(names.items()) if value is plain]:
                names[name] = ours


class Patches(list[Patch]):
    """The patches of one package, or those of one moment."""

    def add(self, modules: str | Iterable[str], target: str = "", *, upstream: str) -> Callable[[Any], Any]:
        """Decorates a patch's ``make``, whose docstring is the reason. With several modules, each that the package has
        is patched.
        """

        def decorate(make: Any) -> Any:
            names = [modules] if isinstance(modules, str) else modules
            self.extend(Patch(name, target, make, make.__doc__ or "", upstream) for name in names)
            return make

        return decorate

    def of(self, module: str) -> list[Patch]:
        """The patches in one module."""
        return [patch for patch in self if patch.module == module]

    def apply(self) -> None:
        """Applies each: now where its module is complete, else as soon as it is. May be repeated."""
        waiting: set[str] = set()
        for patch in self:
            module = sys.modules.get(patch.module)
            if module is None or (is_incomplete(module) and "." in patch.module):
                waiting.add(patch.module)
            else:
                patch.apply(module)

        def complete(module: ModuleType, late: bool) -> None:
            for patch in self.of(module.__name__):
                patch.apply(module)

        def find(name: str) -> Action | None:
            return complete if name in waiting else None

        for package in sorted({name.partition(".")[0] for name in waiting}):
            watch(package, find)


def is_incomplete(module: ModuleType) -> bool:
    """Whether a module is in the middle of its import. A package that loads us at the end of its own looks so, too."""
    return bool(getattr(module.__spec__, "_initializing", False))
