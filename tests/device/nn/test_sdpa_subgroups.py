"""Attention of few queries where threads of a subgroup hand each other numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.device.nn import test_sdpa as sdpa
from tests.device.subgroups import as_on_a_gpu


@pytest.fixture(autouse=True)
def used(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(device, monkeypatch)


SIZES: list[tuple[Any, ...]] = [
    (2, 3, 1, 2, 70, 32, 64),
    (1, 6, 2, 1, 300, 64, 64),
    (1, 2, 2, 1, 900, 16, 32),
    (2, 2, 2, 5, 4, 33, 1),
]


@pytest.mark.parametrize("dtype", sdpa.TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_few_queries(device, size, dtype):
    q, k, v = sdpa.heads(*size, dtype)
    b, h, g, n, s, _, _ = size
    grouped = {"enable_gqa": h != g}
    sdpa.agrees(device, q, k, v, **grouped)
    sdpa.agrees(device, q, k, v, is_causal=True, scale=-0.3, **grouped)
    sdpa.agrees(device, q, k, v, attn_mask=torch.rand(b, 1, n, s) > 0.3, **grouped)
    sdpa.agrees(device, q, k, v, attn_mask=torch.randn(n, s).to(dtype), **grouped)


def test_a_long_cache(device):
    """Its keys are split among workgroups."""
    sdpa.agrees(device, *sdpa.heads(1, 4, 2, 1, 5000, 16, 16, torch.float16), enable_gqa=True)


def test_values_that_are_not_finite(device):
    sdpa.test_queries_that_see_nothing_give_zeros(device)
    sdpa.test_infinities_and_nans(device)
    sdpa.test_large_scores_do_not_overflow(device)
