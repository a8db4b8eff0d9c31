"""einops' own tests, which its wheel has, with tensors of the device in place of the CPU's."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from inspect import isfunction
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["EINOPS_TEST_BACKENDS"] = "numpy,torch"  # which einops' tests read when they are imported
pytest.importorskip("einops", reason="einops is an extra of the tests")

from einops import _backends
from einops.tests import collect_test_backends

MODULES = ("einsum", "examples", "layers", "ops", "other", "packing", "parsing")


def own_tests() -> Iterator[object]:
    """Those that are functions without parameters; the two others are for symbolic frameworks."""
    for name in MODULES:
        module = importlib.import_module(f"einops.tests.test_{name}")
        for attribute, value in vars(module).items():
            own = isfunction(value) and value.__module__ == module.__name__
            if own and attribute.startswith("test_") and not hasattr(value, "pytestmark"):
                yield pytest.param(value, id=f"{name}-{attribute.removeprefix('test_')}")


class LegacyTensor(type):
    """``torch.FloatTensor`` and the like of a device: PyTorch has them for the CPU and for CUDA."""

    dtype: torch.dtype

    def __call__(cls, contents: object) -> torch.Tensor:
        if isinstance(contents, torch.Size):
            return torch.empty(contents, dtype=cls.dtype)
        return torch.tensor(contents, dtype=cls.dtype)


@pytest.fixture(autouse=True)
def tensors_of_the_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def from_numpy(backend: _backends.TorchBackend, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array).to(device)
        return tensor.requires_grad_() if backend.is_float_type(tensor) else tensor

    monkeypatch.setattr(_backends.TorchBackend, "from_numpy", from_numpy)
    for name, dtype in (("FloatTensor", torch.float32), ("LongTensor", torch.int64)):
        type_name = f"torch.{name}" if device.type == "cpu" else f"torch.{device.type}.{name}"  # what x.type(…) reads
        monkeypatch.setattr(torch, name, LegacyTensor(type_name, (), {"dtype": dtype}))
    # One of them starts the program "python".
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("function", own_tests())
def test_of_einops(function: Callable[[], None]) -> None:
    function()


def test_their_tensors_are_the_devices(device: torch.device) -> None:
    """So that the tests above cannot run on the CPU unnoticed."""
    (_, backend) = collect_test_backends()
    assert backend.framework_name == "torch"
    assert backend.from_numpy(np.zeros(2, "float32")).device.type == device.type
    assert torch.zeros(2).device.type == device.type
    assert len([*own_tests()]) >= 50
