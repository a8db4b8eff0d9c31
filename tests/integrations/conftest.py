"""What the tests of libraries share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_webgpu  # noqa: F401  where PyTorch has an accelerator of its own, `import torch` alone does not load it


@pytest.fixture(autouse=True)
def the_only_accelerator() -> None:
    """Beside CUDA, MPS or XPU the libraries choose those, and are left to."""
    if torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available():
        pytest.skip("this machine has an accelerator that the libraries choose before webgpu")


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test sees the random numbers it saw last time."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def everything_fits() -> Iterator[None]:
    """A library that a patch does not fit any more is an error here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torch_webgpu does not fit", RuntimeWarning)
        yield
