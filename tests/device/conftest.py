"""What all device tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test sees the random numbers it saw last time."""
    torch.random.default_generator.manual_seed(0)
