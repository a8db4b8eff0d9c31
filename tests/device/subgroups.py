"""Kernels whose threads hand each other numbers by subgroups, on adapters that say how large these are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.device.choices import forget

from torch_webgpu.engine.record import engine


def as_on_a_gpu(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> int:
    """Until the test ends kernels have the sizes of a GPU's, also on a software adapter. The threads of a subgroup."""
    current = engine().device(device.index or 0)
    size: int = current.target.subgroup_size
    if not size:
        pytest.skip("the adapter does not say how large its subgroups are")
    _ = current.opened  # as what it is: kernels are compiled for the target that it had when it was opened
    monkeypatch.setattr(current, "target", replace(current.target, software=False))
    forget(monkeypatch)
    return size
