"""Tests that need 64-bit floats, which not every adapter has."""

from __future__ import annotations

import pytest
import torch
from tests.conformance.target import DEVICE

from torch_webgpu.engine.record import engine

DOUBLES = (torch.float64, torch.complex128)


def skip_without_float64(item: pytest.Function) -> None:
    """Skips what needs doubles where the adapter has none.

    That are the tests marked so, and those that a parameter asks for, by itself or by its name.
    """
    needed = item.get_closest_marker("float64") is not None
    if hasattr(item, "callspec"):
        needed |= "double" in item.callspec.id.replace("-", " ").split()
        needed |= any(value is dtype for value in item.callspec.params.values() for dtype in DOUBLES)
    if needed and DEVICE.type == "webgpu" and torch.webgpu.is_available() and not engine().device(0).target.float64:
        pytest.skip("the adapter has no float64")
