"""Which device takes a CUDA device's place: the best one that is there and works."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch

from torch_webgpu.errors import did_you_mean

ORDER = ("cuda", "mps", "xpu", "webgpu", "cpu")
"""From the one that needs no translation to the one that is always there."""


FAILURES = (RuntimeError, AssertionError, AttributeError, ImportError, OSError)
"""What PyTorch and drivers raise where a device does not work."""


@dataclass(frozen=True)
class Candidate:
    """A device that was looked at: ``wrong`` says why it cannot be used, "" if it can."""

    device: str
    wrong: str


Look = Callable[[str], Candidate]
"""How a candidate is looked at: :func:`probe`, or :func:`available`."""


def module(device: str) -> ModuleType:
    """``torch.cuda``, ``torch.webgpu`` …: the module about a device type."""
    if device == "webgpu":
        importlib.import_module("torch_webgpu").register()
    found: ModuleType = getattr(torch, device)
    return found


def available(device: str) -> Candidate:
    """Looks whether ``device`` is there, without computing anything."""
    try:
        return Candidate(device, "" if module(device).is_available() else "not available")
    except FAILURES as error:
        return Candidate(device, told(error))


@cache
def probe(device: str) -> Candidate:
    """Tries ``device``: whether it is there, and multiplies two matrices as the CPU does."""
    if (found := available(device)).wrong:
        return found
    try:
        x = torch.arange(64.0).reshape(8, 8) / 64
        got = (x.to(device) @ x.to(device)).sin().cpu()
        if not torch.allclose(got, (x @ x).sin(), rtol=1e-3, atol=1e-4):
            return Candidate(device, "computes wrong numbers")
    except FAILURES as error:
        return Candidate(device, told(error))
    return Candidate(device, "")


def told(error: BaseException) -> str:
    """The first line of what an error says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def known(device: str) -> str:
    """``device``, if it is "auto" or one of :data:`ORDER`; ValueError otherwise."""
    if device not in ("auto", *ORDER):
        raise ValueError(f"device {device!r} is not one of auto, {', '.join(ORDER)}{did_you_mean(device, ORDER)}")
    return device


def choose(asked: str = "auto", look: Look = probe) -> str:
    """The device type for what was ``asked`` (see :func:`known`). RuntimeError if it cannot be used."""
    if known(asked) == "auto":
        return next(device for device in ORDER if not look(device).wrong)
    if wrong := look(asked).wrong:
        others = ", ".join(device for device in ORDER if device != asked and not look(device).wrong)
        raise RuntimeError(f"{asked} cannot be used here: {wrong}. These can: {others}")
    return asked
