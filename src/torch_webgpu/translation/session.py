"""Translation that is on: for which device, with what replaced, and how to end it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import perf_counter

import torch

from . import matrix, router
from .alias import Alias
from .callers import Packages
from .helper import Helper
from .importing import Imports, Translator
from .missing import Missing
from .monitor import Monitor
from .replacements import Replacements

VARIABLE = "TORCH_WEBGPU_TRANSLATE"
"""Set for child processes: the device type; or by the user: 1, auto, or a device type."""
PACKAGES = "TORCH_WEBGPU_TRANSLATE_PACKAGES"
"""Installed packages to be translated like the user's own code, separated by commas."""


class Session:
    """From :func:`enable` to :func:`disable`."""

    def __init__(self, target: str, packages: Iterable[str]) -> None:
        self.began = perf_counter()
        self.target = target
        self.packages = Packages(packages)
        self.monitor = Monitor()
        self.replacements = Replacements()
        self.aliases: list[Alias] = []
        self.environment = {name: os.environ.get(name) for name in (VARIABLE, PACKAGES)}
        self.translator = Translator(Helper(target), self.packages)
        os.environ[VARIABLE], os.environ[PACKAGES] = target, ",".join(sorted(self.packages.names))
        self.imports: Imports | None = None
        self.missing: Missing | None = None
        if target != "cuda":  # which needs no translation
            self.imports = Imports(self.translator)
            for absent in self.translator.helper.names.foreign:
                self.aliases.append(Alias(absent, target))
            matrix.install(target, self.replacements, self.monitor)
            self.missing = Missing(target, self.replacements, self.monitor)
        if target == "cpu":
            without_accelerator(self.replacements)
        self.seconds_to_enable = perf_counter() - self.began

    def end(self) -> None:
        if self.missing is not None:
            self.missing.undo()
        self.replacements.restore()
        for alias in reversed(self.aliases):
            alias.undo()
        if self.imports is not None:
            self.imports.undo()
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def without_accelerator(replacements: Replacements) -> None:
    """Programs and libraries that ask for any accelerator hear that there is none: the CPU was chosen."""
    replacements.set(torch.accelerator, "is_available", lambda: False)
    replacements.set(torch.accelerator, "device_count", lambda: 0)
    replacements.set(torch.accelerator, "current_accelerator", lambda check_available=False: None)


_session: Session | None = None


def active() -> Session | None:
    """The session that is on."""
    return _session


def enable(device: str = "auto", packages: Iterable[str] = (), look: router.Look = router.probe) -> Session:
    """Begins to translate for ``device`` (see :func:`.router.choose`), also in ``packages``; safe to repeat.

    RuntimeError if the device cannot be used, or if translation is on for another one.
    """
    global _session
    if _session is None:
        _session = Session(router.choose(device, look), packages)
    elif device not in ("auto", _session.target):
        raise RuntimeError(f"translation is on for {_session.target} already; disable() it before asking for {device}")
    return _session


def disable() -> None:
    """Ends translation: every attribute is what it was. Modules that were imported meanwhile stay as they are."""
    global _session
    if _session is not None:
        _session.end()
        _session = None


def enable_as_asked(device: str = "auto", packages: Iterable[str] = (), look: router.Look = router.probe) -> Session:
    """:func:`enable`, for the device and also the packages that the environment names where it does."""
    named = os.environ.get(VARIABLE, "").strip().lower()
    if device == "auto" and named in router.ORDER:
        device = named
    return enable(device, [*packages, *filter(None, os.environ.get(PACKAGES, "").split(","))], look)
