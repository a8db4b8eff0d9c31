"""What the tests of programs' own operators share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_webgpu.extend.op import op, registered, unregister


@pytest.fixture
def define() -> Iterator[Callable[..., Any]]:
    """``torch.webgpu.op`` for operators that go when the test ends."""
    before = set(registered())
    yield op
    for name in [name for name in registered() if name not in before]:
        unregister(name)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(0)
