"""Compiled products of float32 under ``torch.set_float32_matmul_precision``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
import torch
from tests.device.linalg.matrices_emulated import pretend_halves, used

from torch_webgpu.compile import cache

SETTINGS = ("highest", "high", "medium")
ORDER = [setting for order in permutations(SETTINGS) for setting in order]


@pytest.fixture(autouse=True)
def chosen(monkeypatch) -> Iterator[list[object]]:
    yield from pretend_halves(monkeypatch)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b).relu()


def test_each_call_takes_the_setting_in_force(device):
    compiled = torch.compile(product, fullgraph=True)
    for setting in ORDER:
        torch.set_float32_matmul_precision(setting)
        assert used(compiled, device) == setting


@pytest.mark.parametrize("later", SETTINGS)
@pytest.mark.parametrize("first", SETTINGS)
def test_gradients_take_the_setting_in_force_when_they_are_computed(device, first, later):
    compiled = torch.compile(lambda x, b: x @ b, fullgraph=True)

    def gradient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.zeros_like(a, requires_grad=True)
        torch.set_float32_matmul_precision(first)
        y = compiled(x, b)
        torch.set_float32_matmul_precision(later)
        return torch.autograd.grad(y, x, a)[0]

    assert used(gradient, device) == later


def test_plans_on_disk_are_kept_for_each_setting(device, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    for _ in range(2):
        for setting in SETTINGS:
            torch._dynamo.reset()
            torch.set_float32_matmul_precision(setting)
            assert used(torch.compile(product, fullgraph=True), device) == setting
    assert len(list(tmp_path.glob("*.plan"))) == len(SETTINGS)
