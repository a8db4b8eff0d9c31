"""Translation that is on: for which device, with what replaced, and how to end it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from time import perf_counter

import torch
from torch.nn import DataParallel

from torch_webgpu.errors import did_you_mean
from torch_webgpu_autoload import OFF

from . import router, table
from .alias import Alias
from .callers import Packages
from .emulated import distributed
from .importing import Imports, Translator
from .missing import Missing
from .monitor import Monitor
from .replacements import Replacements
from .runtime_support import Helper

VARIABLE = "TORCH_WEBGPU_TRANSLATE"
"""Set for child processes: the device type; or by the user: 1, auto, or a device type."""
ANY = ("1", "auto", "on", "true", "yes")
"""What it says for the best device that there is."""
PACKAGES = "TORCH_WEBGPU_TRANSLATE_PACKAGES"
"""Installed packages to be translated like the user's own code, separated by commas."""


class Session:
    """From :func:`enable` to :func:`disable`. If a part cannot be placed, those before it are undone."""

    def __init__(self, target: str, packages: Iterable[str]) -> None:
        self.began = perf_counter()
        self.target = target
        self.packages = Packages(packages)
        self.monitor = Monitor()
        self.translator = Translator(Helper(target), self.packages)
        with ExitStack() as undo:
            undo.callback(put_back, {name: os.environ.get(name) for name in (VARIABLE, PACKAGES)})
            os.environ[VARIABLE], os.environ[PACKAGES] = target, ",".join(sorted(self.packages.names))
            self._install(undo)
            self._undo = undo.pop_all()
        self.seconds_to_enable = perf_counter() - self.began

    def _install(self, undo: ExitStack) -> None:
        """Replaces what translation replaces; ``undo`` takes it back, the last first."""
        if self.target == "cuda":  # which needs no translation
            return
        replacements = Replacements()
        undo.callback(replacements.restore)
        aliases = (Alias(absent, self.target) for absent in self.translator.helper.names.foreign)
        missing = Missing(self.target, replacements, self.monitor)
        parts: list[Imports | Alias | Missing] = [Imports(self.translator), *aliases, missing]
        for part in parts:
            undo.callback(part.undo)
            part.install()
        table.install(self.target, replacements, self.monitor)
        devices_of_data_parallel(self.target, replacements)
        distributed.count_in_torchrun()
        if self.target == "cpu":
            without_accelerator(replacements)

    def end(self) -> None:
        """Takes everything back."""
        self._undo.close()


def put_back(environment: Mapping[str, str | None]) -> None:
    """Gives the variables the values that they had, None if they were not there."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def without_accelerator(replacements: Replacements) -> None:
    """Programs and libraries that ask for any accelerator hear that there is none: the CPU was chosen."""
    replacements.set(torch.accelerator, "is_available", lambda: False)
    replacements.set(torch.accelerator, "device_count", lambda: 0)
    replacements.set(torch.accelerator, "current_accelerator", lambda check_available=False: None)


def devices_of_data_parallel(target: str, replacements: Replacements) -> None:
    """``nn.DataParallel`` moves the module, and the parts of what it is given, to the devices, as it does on CUDA.

    Untranslated, it leaves a module of the CPU where it is.
    """
    device_type = None if target in ("mps", "cpu") else target
    replacements.set(sys.modules[DataParallel.__module__], "_get_available_device_type", lambda: device_type)
    replacements.set(DataParallel, "__init__", inspect.unwrap(DataParallel.__init__))


_session: Session | None = None


def active() -> Session | None:
    """The session that is on."""
    return _session


def enable(device: str = "auto", packages: Iterable[str] = (), look: router.Look = router.probe) -> Session:
    """Begins to translate for ``device`` (see :func:`.router.choose`), also in ``packages``; safe to repeat.

    ValueError for a name of no device; RuntimeError if it cannot be used, or if translation is on for another one.
    """
    global _session
    if _session is None:
        _session = Session(router.choose(device, look), packages)
    elif router.known(device) not in ("auto", _session.target):
        raise RuntimeError(f"translation is on for {_session.target} already; disable() it before asking for {device}")
    return _session


def disable() -> None:
    """Ends translation: every attribute is what it was. Modules that were imported meanwhile stay as they are."""
    global _session
    if _session is not None:
        _session.end()
        _session = None


def asked_device() -> str:
    """The device that the environment names, "auto" where it names none. ValueError if it says something else."""
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said in (*OFF, *ANY):  # off: the command and the import ask by themselves
        return "auto"
    if said not in router.ORDER:
        names = ", ".join(router.ORDER)
        meant = did_you_mean(said, router.ORDER)
        raise ValueError(f"{VARIABLE}={said!r}: expected 1 (the best device there is), 0, or one of {names}{meant}")
    return said


def enable_as_asked(device: str = "auto", packages: Iterable[str] = (), look: router.Look = router.probe) -> Session:
    """:func:`enable`, for the device and also the packages that the environment names where it does."""
    if device == "auto":
        device = asked_device()
    return enable(device, [*packages, *filter(None, os.environ.get(PACKAGES, "").split(","))], look)
