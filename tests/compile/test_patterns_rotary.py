"""Rotary embeddings in training: they and their gradients are one kernel each, in whatever types."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F

HEADS, CHANNELS = 3, 8
SHAPE = (2, 5, HEADS * CHANNELS)
"""Batch, positions, features."""


def turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def attend(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Attention of what lies as (batch, positions, heads, channels), its queries and keys embedded."""
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (x @ w).chunk(3, -1))
    q, k = (t * cos + turned(t) * sin for t in (q, k))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def inputs(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    angles = torch.rand(SHAPE[0], 1, SHAPE[1], CHANNELS)
    given = [torch.randn(SHAPE), torch.randn(SHAPE[2], 3 * SHAPE[2]) / 5, angles.cos(), angles.sin()]
    given = [t.to(device, dtype) for t in given]
    for t in given[:2]:
        t.requires_grad_()
    return given


def under(device: str, autocast: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if autocast is None else torch.autocast(device, autocast)


@pytest.mark.parametrize(
    ("dtype", "autocast", "tolerance"),
    [
        (torch.float32, None, 1e-5),
        (torch.float32, torch.float16, 1e-2),
        (torch.float32, torch.bfloat16, 8e-2),
        (torch.float16, None, 1e-2),
    ],
    ids=["float32", "autocast to float16", "autocast to bfloat16", "float16"],
)
def test_training(dtype: torch.dtype, autocast: torch.dtype | None, tolerance: float, found: dict[str, int]) -> None:
    """Sines of both halves differ, so that each gradient has to take its own."""
    want, got = inputs("cpu", torch.float32), inputs("webgpu", dtype)
    weights = torch.randn(SHAPE[0], HEADS, SHAPE[1], CHANNELS)
    (attend(*want) * weights).sum().backward()
    compiled = torch.compile(attend, fullgraph=True)
    with under("webgpu", autocast):
        result = compiled(*got)
    (result * weights.to("webgpu")).sum().backward()
    for ours, theirs in zip(got[:2], want[:2], strict=True):
        scale = theirs.grad.abs().max()
        torch.testing.assert_close(ours.grad.cpu().float() / scale, theirs.grad / scale, rtol=0, atol=tolerance)
    assert (found["rotary"], found["rotary's gradient"]) == (2, 2)
    assert found.get("rounded rotary", 0) == (2 if autocast else 0)


def test_what_looks_like_a_gradient(found: dict[str, int]) -> None:
    """Halves in the other order with the sign on the wrong one, of another tensor, or of unequal lengths."""

    def others(g: torch.Tensor, h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product, other, half = g * sin, h * sin, CHANNELS // 2
        return (
            g * cos + torch.cat((-product[..., half:], product[..., :half]), -1),
            g * cos + torch.cat((other[..., half:], -other[..., :half]), -1),
            g * cos + torch.cat((product[..., half - 1 :], -product[..., : half - 1]), -1),
        )

    def gradient(g: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        product, half = g * sin, CHANNELS // 2
        return g * cos + torch.cat((product[..., half:], -product[..., :half]), -1)

    g, h, cos, sin = (torch.randn(2, HEADS, 5, CHANNELS, device="webgpu") for _ in range(4))
    for fn, args in ((others, (g, h, cos, sin)), (gradient, (g, cos, sin))):
        torch.testing.assert_close(torch.compile(fn, fullgraph=True)(*args), fn(*args))
    assert found == {"rotary's gradient": 1}
