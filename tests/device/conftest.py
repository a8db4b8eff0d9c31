"""What all device tests share."""

from __future__ import annotations

import pytest
import torch

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test sees the random numbers it saw last time."""
    torch.random.default_generator.manual_seed(0)
