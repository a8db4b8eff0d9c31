"""Masks that a graph makes of nothing but numbers: compiled as causal attention, or as attention without a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_webgpu.compile import causal_masks

L = 20


def arange(like: Tensor) -> Tensor:
    return torch.arange(L, device=like.device)


def as_transformers_do(q: Tensor) -> Tensor:
    """Of functions of positions, vmapped over both, and a sequence's padding that nobody gave."""

    def seen(query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    rows = torch.vmap(torch.vmap(seen, (None, 0)), (0, None))(arange(q), arange(q))
    return (rows & torch.ones(L, L, dtype=torch.bool, device=q.device))[None, None].expand(q.shape[0], 1, L, L)


MASKS: dict[str, tuple[Callable[[Tensor], Tensor], bool | None]] = {
    "compared": (lambda q: arange(q)[None, :] <= arange(q)[:, None], True),
    "tril": (lambda q: torch.ones(L, L, dtype=torch.bool, device=q.device).tril(), True),
    "transformers": (as_transformers_do, True),
    "all": (lambda q: torch.ones(L, L, dtype=torch.bool, device=q.device), False),
    "strictly": (lambda q: arange(q)[None, :] < arange(q)[:, None], None),
    "window": (lambda q: (arange(q)[None, :] - arange(q)[:, None]).abs() < 5, None),
    "of values": (lambda q: q[0, 0, :, :1] > 0, None),
    "drawn": (lambda q: torch.rand(L, L, device=q.device) > -1, None),
    "added": (lambda q: torch.zeros(L, L, device=q.device), None),
}


@pytest.fixture
def meanings(monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    """What the masks of graphs that are compiled mean."""
    found: list[bool | None] = []
    meaning = causal_masks.meaning

    def noted(*args: Any) -> bool | None:
        found.append(meaning(*args))
        return found[-1]

    monkeypatch.setattr(causal_masks, "meaning", noted)
    return found


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks(device, meanings, name, trains):
    make, expected = MASKS[name]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=make(q)).sin()

    given = [torch.randn(2, 3, L, 8, device=device) for _ in range(3)]
    results = []
    for fn in (attend, torch.compile(attend, fullgraph=True)):
        torch.manual_seed(3)
        leaves = [t.clone().requires_grad_(trains) for t in given]
        y = fn(*leaves)
        results.append([y, *(torch.autograd.grad(y.sum(), leaves) if trains else ())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert meanings
    assert set(meanings) == {expected}


def test_other_sizes_of_keys_have_no_causal_mask(device, meanings):
    def attend(q: Tensor, k: Tensor) -> Tensor:
        mask = torch.ones(L, L + 4, dtype=torch.bool, device=q.device).tril(4)
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    q, k = torch.randn(1, 2, L, 8, device=device), torch.randn(1, 2, L + 4, 8, device=device)
    torch.testing.assert_close(torch.compile(attend)(q, k), attend(q, k))
    assert meanings == [None]
