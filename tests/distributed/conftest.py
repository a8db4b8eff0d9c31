"""The ranks that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.distributed.ranks import Ranks
from tests.float64 import skip_without_float64


def pytest_runtest_setup(item: pytest.Function) -> None:
    skip_without_float64(item)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes in a group of the backend that is chosen for the device, on one adapter."""
    two = Ranks(2)
    yield two
    two.stop()


@pytest.fixture(scope="module")
def ranks_on_gloo() -> Iterator[Ranks]:
    """Two processes in a group of gloo, with an adapter each."""
    two = Ranks(2, "gloo", TORCH_WEBGPU_COPIES="2")
    yield two
    two.stop()
