"""Attention of many queries as products: results, gradients and gradients of these, against the CPU in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.nn.test_sdpa import TOLERANCES, agrees, heads, kernels, no_fallback  # noqa: F401
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_webgpu.aten.attention import sdpa

SIZES = [
    (2, 6, 3, 20, 37, 16, 24),
    (1, 4, 4, 33, 64, 64, 64),
    (2, 2, 1, 17, 9, 5, 3),
]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_results(device, size, dtype):
    b, h, g, n, s, _, _ = size
    q, k, v = heads(*size, dtype)
    assert kernels(lambda: F.scaled_dot_product_attention(*[t.to(device) for t in (q, k, v)], enable_gqa=h != g))
    agrees(device, q, k, v, enable_gqa=h != g)
    agrees(device, q, k, v, enable_gqa=h != g, is_causal=True, scale=-0.3)
    for mask in (torch.rand(n, s) > 0.9, torch.randn(b, 1, 1, s).to(dtype)):
        agrees(device, q, k, v, enable_gqa=h != g, attn_mask=mask)


def test_nothing_is_copied_for_grouped_heads(device):
    q, k, v = (t.to(device) for t in heads(2, 6, 3, 20, 37, 16, 24, torch.float32))
    names = kernels(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert len(names) == 3, names


def test_layouts(device):
    q, k, v = (torch.randn(2, 20, 3, 8).transpose(1, 2) for _ in range(3))
    agrees(device, q, k, v)
    assert F.scaled_dot_product_attention(*[t.to(device) for t in (q, k, v)]).shape == q.shape
    agrees(device, q, k.mT.contiguous().mT, v[:1].expand(2, 3, 20, 8))


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **options: Any) -> torch.Tensor:
    """The fused operator on webgpu, whatever road a call would take there; elsewhere the composition."""
    if q.device.type == "webgpu":
        is_causal, scale = options.get("is_causal", False), options.get("scale")
        return sdpa.FUSED(q, k, v, mask, 0.0, is_causal, scale=scale)[0]
    with sdpa_kernel([SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1], **options)


def gradients(tensors: list[torch.Tensor | None], seed: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    live = [None if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    out = fused(*live, **options)  # type: ignore[arg-type]
    return list(torch.autograd.grad(out, [t for t in live if t is not None and t.requires_grad], seed))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", [*SIZES, (1, 4, 2, 3, 40, 8, 8)], ids=str)
def test_gradients(device, size, dtype):
    b, h, _, n, s, _, d = size
    qkv, seed = heads(*size, dtype), torch.randn(b, h, n, d).to(dtype)
    for mask, options in (
        (None, {}),
        (None, {"is_causal": True, "scale": 0.7}),
        (torch.rand(n, s) > 0.7, {}),
        (torch.randn(h, n, 1).to(dtype), {}),
        (torch.randn(1, 1, n, s).to(dtype), {}),
    ):
        exact = [t if t is None or t.dtype == torch.bool else t.double() for t in (*qkv, mask)]
        expected = gradients(exact, seed.double(), **options)
        there = [None if t is None else t.to(device) for t in (*qkv, mask)]
        actual = gradients(there, seed.to(device), **options)
        for got, want in zip(actual, expected, strict=True):
            # Weights and slopes are rounded to the dtype before they meet: errors are relative to the largest sums.
            tolerance = 4 * TOLERANCES[dtype] * max(1.0, want.abs().max().item())
            torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=tolerance)


def test_gradients_of_gradients(device):
    def second(*qkv: torch.Tensor) -> list[torch.Tensor]:
        live = [t.detach().requires_grad_() for t in qkv]
        (first,) = torch.autograd.grad(fused(*live, None).sin().sum(), live[:1], create_graph=True)
        return list(torch.autograd.grad(first.sin().sum(), live))

    qkv = heads(1, 4, 2, 18, 7, 8, 8, torch.float32)
    expected = second(*[t.double() for t in qkv])
    for got, want in zip(second(*[t.to(device) for t in qkv]), expected, strict=True):
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-4)


def test_only_what_is_wanted_has_gradients(device):
    q, k, v = (t.to(device) for t in heads(1, 2, 2, 18, 7, 8, 8, torch.float32))
    k.requires_grad_()
    fused(q, k, v, None).sum().backward()
    assert k.grad is not None
    assert q.grad is None
    assert v.grad is None


@pytest.mark.parametrize("size", [(2, 3, 3, 0, 5, 4, 4), (2, 3, 3, 20, 0, 4, 4)], ids=str)
def test_empty(device, size):
    agrees(device, *heads(*size, torch.float32))
    qkv = [t.to(device) for t in heads(*size, torch.float32)]
    found = gradients([*qkv, None], torch.ones(2, 3, size[3], 4, device=device))
    assert [t.shape for t in found] == [t.shape for t in qkv]
    assert not any(t.cpu().any() for t in found)


def test_a_compiled_step_trains_as_an_eager_one(device):
    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa.FUSED(q, k, v, None, 0.0, True)[0].sin().sum()

    qkv = [t.to(device) for t in heads(1, 4, 2, 20, 20, 8, 8, torch.float32)]
    found = []
    for fn in (loss, torch.compile(loss, fullgraph=True)):
        live = [t.clone().requires_grad_() for t in qkv]
        fn(*live).backward()
        found.append([t.grad for t in live])
    for got, want in zip(*found, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
