"""What all device tests share."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.conformance.target import DEVICE
from tests.float64 import skip_without_float64

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it


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
    skip_without_float64(item)
