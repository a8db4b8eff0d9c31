"""What all device tests share."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.conformance.target import DEVICE

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it
from torch_webgpu.engine.record import engine

DOUBLES = (torch.float64, torch.complex128)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test sees the random numbers it saw last time."""
    torch.random.default_generator.manual_seed(0)


@pytest.fixture
def settled() -> None:
    """For tests that count bytes: what earlier ones left in cycles or under way is gone before they start."""
    gc.collect()
    if DEVICE.type == "webgpu":
        torch.webgpu.synchronize()


def pytest_runtest_setup(item: pytest.Function) -> None:
    """Skips what needs doubles where the adapter has none.

    That are the tests marked so, and those that a parameter asks for, by itself or by its name.
    """
    needed = item.get_closest_marker("float64") is not None
    if hasattr(item, "callspec"):
        needed |= "double" in item.callspec.id.replace("-", " ").split()
        needed |= any(value is dtype for value in item.callspec.params.values() for dtype in DOUBLES)
    if needed and DEVICE.type == "webgpu" and torch.webgpu.is_available() and not engine().device(0).target.float64:
        pytest.skip("the adapter has no float64")
