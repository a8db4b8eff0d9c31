"""FlexAttention's kernels on subgroup matrices, which the adapter pretends to have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.device.linalg.matrices_emulated import NVIDIA, pretend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_webgpu.kernels.attention import flash_matrix
from torch_webgpu.kernels.attention.flash_fragments import FragmentTile

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

TILE = FragmentTile(32, 32, 2)
LENGTH = 100


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_matrix, "TILES", dict.fromkeys(flash_matrix.TILES, (TILE,)))
    pretend(monkeypatch, NVIDIA)
    torch._dynamo.reset()


def softcap(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 5 * torch.tanh(s / 5)


def growing(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """Scores of early keys are the greatest, so that sums are rescaled at each block: late ones are visited first."""
    return s * s + (h - 2.5) * j


def window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 20 + h)


def gradients(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    inputs = [t.detach().requires_grad_() for t in inputs]
    out = fn(*inputs)
    return [out, *torch.autograd.grad(out.float().sin().sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [None, softcap, growing])
def test_results_and_gradients(function: Callable[..., Any] | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, h, LENGTH, 24).to("webgpu", dtype) for h in (4, 2, 2)]
    blocks = create_block_mask(window, None, 4, LENGTH, LENGTH, device="webgpu", BLOCK_SIZE=32)
    slopes = torch.rand(4, device="webgpu")
    score_mod = function or (lambda s, b, h, i, j: s + slopes[h] * (j - i))

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=True)

    with torch.webgpu.profile() as p:
        found = gradients(torch.compile(fn, fullgraph=True), given)
        torch.webgpu.synchronize()
    names = {event.name for event in p.events}
    assert {"flash_attention_matrix", "flash_attention_query_matrix", "flash_attention_key_matrix"} <= names
    for expected, result in zip(gradients(fn, [t.float() for t in given]), found, strict=True):
        tol = 4e-3 if dtype == torch.float16 else 3e-2
        torch.testing.assert_close(result.float(), expected, rtol=tol, atol=tol * expected.abs().max().item())
