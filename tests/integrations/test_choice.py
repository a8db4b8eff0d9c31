"""When a library that looks for an accelerator is told of webgpu."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_webgpu.integrations import choice
from torch_webgpu.integrations.choice import instead_of_cpu, webgpu_device

CPU = torch.device("cpu")


def test_it_is_the_current_adapter() -> None:
    assert webgpu_device() == instead_of_cpu(CPU) == torch.device("webgpu", torch.webgpu.current_device())


@pytest.mark.parametrize("own", [torch.cuda, torch.xpu, torch.backends.mps], ids=["cuda", "xpu", "mps"])
def test_pytorchs_own_accelerator_comes_first(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "is_available", lambda: True)
    assert webgpu_device() is None
    assert instead_of_cpu(CPU) == CPU


def test_without_an_adapter_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "is_available", lambda: False)
    assert webgpu_device() is None
    assert instead_of_cpu(CPU) == CPU


def test_what_a_library_chose_stays() -> None:
    assert instead_of_cpu(torch.device("cuda", 1)) == torch.device("cuda", 1)
