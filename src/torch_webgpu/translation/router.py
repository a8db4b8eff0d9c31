"""Which device takes a CUDA device's place: the best one that is there and works."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch

ORDER = ("cuda", "mps", "xpu", "webgpu", "cpu")
"""From the one that needs no translation to the one that is always there."""


@dataclass(frozen=True)
class Candidate:
    """A device that was looked at: ``wrong`` says why it cannot be used, "" if it can."""

    device: str
    wrong: str


def module(device: str) -> ModuleType:
    """``torch.cuda``, ``torch.webgpu`` …: the module about a device type."""
    if device == "webgpu":
        importlib.import_module("torch_webgpu")
    found: ModuleType = getattr(torch, device)
    return found


@cache
def probe(device: str) -> Candidate:
    """Tries ``device``: whether it is there, and multiplies two matrices as the CPU does."""
    try:
        if not module(device).is_available():
            return Candidate(device, "not available")
        x = torch.arange(64.0).reshape(8, 8) / 64
        got = (x.to(device) @ x.to(device)).sin().cpu()
        if not torch.allclose(got, (x @ x).sin(), rtol=1e-3, atol=1e-4):
            return Candidate(device, "computes wrong numbers")
    except (RuntimeError, AssertionError, AttributeError, ImportError, OSError) as error:
        return Candidate(device, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return Candidate(device, "")


def choose(asked: str = "auto", look: Callable[[str], Candidate] = probe) -> str:
    """The device type for what was ``asked``: "auto", or one of :data:`ORDER`. RuntimeError if it cannot be used."""
    if asked == "auto":
        return next(device for device in ORDER if not look(device).wrong)
    if asked not in ORDER:
        raise ValueError(f"device {asked!r} is not one of auto, {', '.join(ORDER)}")
    if wrong := look(asked).wrong:
        others = ", ".join(device for device in ORDER if device != asked and not look(device).wrong)
        raise RuntimeError(f"{asked} cannot be used here: {wrong}. These can: {others}")
    return asked
