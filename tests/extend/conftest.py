"""What the tests of programs' own operators and element types share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torch_webgpu.extend import dtypes
from torch_webgpu.extend.op import op, registered, unregister

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "custom_dtypes"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"custom_dtypes_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def examples() -> Iterator[dict[str, ModuleType]]:
    """The modules of ``examples/custom_dtypes``, by name."""
    modules = {name: example(name) for name in ("int4x2", "mxfp8", "dual")}
    yield modules
    for name in modules:
        dtypes.unregister_dtype(name)


@pytest.fixture(autouse=True)
def same_registry(examples: dict[str, ModuleType]) -> Iterator[None]:
    """What a test registers is gone after it."""
    before = set(dtypes.registered())
    yield
    for name in set(dtypes.registered()) - before:
        dtypes.unregister_dtype(name)


@pytest.fixture(params=["cpu", "webgpu"])
def place(request: pytest.FixtureRequest, device: object) -> object:
    """The CPU, and the device under test."""
    import torch

    return torch.device("cpu") if request.param == "cpu" else device


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
