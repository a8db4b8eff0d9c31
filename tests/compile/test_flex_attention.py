"""FlexAttention in compiled graphs: what eager mode gives, forward and backward, as parts of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:return_lse")

Attention = Callable[..., Any]


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 7)


def with_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h] * (i - j))


def with_fixed_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    fixed = bias.detach() * 2
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + fixed[h] * (i - j))


def softcapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device=q.device, BLOCK_SIZE=16)
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 20 * torch.tanh(s / 20), block_mask=mask)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> Any:
    mask = create_block_mask(window, None, None, q.shape[2], k.shape[2], device=q.device, BLOCK_SIZE=16)
    given = (q, k[:, :2], v[:, :2])
    return flex_attention(*given, block_mask=mask, scale=0.3, enable_gqa=True, return_lse=True)


def documents(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The last queries see nothing."""
    number = torch.arange(k.shape[2], device=q.device) // 9

    def same(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (number[i] == number[j]) & (i < 30 + h)

    mask = create_block_mask(same, None, q.shape[1], q.shape[2], k.shape[2], device=q.device, BLOCK_SIZE=16)
    return flex_attention(q, k, v, block_mask=mask)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, k, v)


def outcome(fn: Attention, dtype: torch.dtype, grad: bool, queries: int = 40) -> list[torch.Tensor]:
    """Results, and gradients of all inputs."""
    torch.manual_seed(0)
    shapes = (2, 4, queries, 16), (2, 4, 40, 16), (2, 4, 40, 16), (4,)
    inputs = [torch.randn(shape).to("webgpu", dtype).requires_grad_(grad) for shape in shapes]
    out = fn(*inputs)
    results = list(out) if isinstance(out, tuple) else [out]
    if grad:
        sum(t.float().sin().sum() for t in results).backward()
        results += [t.grad for t in inputs if t.grad is not None]
    return [t.detach().cpu() for t in results]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("fn", [plain, with_bias, with_fixed_bias, softcapped, grouped, documents])
def test_compiled_is_eager(fn: Attention, dtype: torch.dtype, grad: bool) -> None:
    torch._dynamo.reset()
    before = torch.webgpu.compile_stats()
    compiled = torch.compile(
        fn, fullgraph=fn in (plain, with_bias, with_fixed_bias)
    )  # masks are made eagerly, as PyTorch advises
    tol = 1e-5 if dtype == torch.float32 else 2e-2
    for expected, found in zip(outcome(fn, dtype, grad), outcome(compiled, dtype, grad), strict=True):
        torch.testing.assert_close(found, expected, rtol=tol, atol=tol)
    after = torch.webgpu.compile_stats()
    assert after.patterns["FlexAttention"] - before.patterns.get("FlexAttention", 0) == 1 + grad
    assert after.plans > before.plans
    assert not [node for node in after.between if "flex" in node and after.between[node] != before.between.get(node)]


def test_lengths_that_change() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(with_bias, fullgraph=True, dynamic=True)
    for queries in (24, 40, 33):
        for expected, found in zip(
            outcome(with_bias, torch.float32, True, queries),
            outcome(compiled, torch.float32, True, queries),
            strict=True,
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)  # a bias adds up thousands


def operations(fn: Attention, width: int = 16) -> list[str]:
    """What a call's kernels compute."""
    torch._dynamo.reset()
    compiled, q = torch.compile(fn, fullgraph=True), torch.randn(1, 2, 40, width, device="webgpu")
    compiled(q), compiled(q)
    with torch.webgpu.profile() as p:
        compiled(q)
    return [event.operation for event in p.events]


@pytest.mark.parametrize("order", [(2, 0, 3, 1, 4), (2, 1, 3, 0, 4)])
def test_packed_projections_in_halves(order: tuple[int, ...]) -> None:
    """Heads that lie apart, and such that no view joins with the batch."""
    torch._dynamo.reset()

    def fn(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.permute(order)
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - (i - j).abs())

    x = torch.randn(2, 40, 3, 40, 16).to("webgpu", torch.float16)
    torch.testing.assert_close(torch.compile(fn, fullgraph=True)(x), fn(x), rtol=1e-2, atol=1e-2)


def test_what_is_done_to_scores_joins_the_product_and_the_softmax() -> None:
    """Of heads that are wider than kernels without scores take."""
    found = operations(lambda q: flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s.sin()), width=256)
    assert len(found) == 3, found


def test_scores_that_stay_as_they_are_are_attention() -> None:
    mask = create_block_mask(causal, None, None, 40, 40, device="webgpu", BLOCK_SIZE=16)
    attention = operations(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert operations(lambda q: flex_attention(q, q, q, block_mask=mask)) == attention
