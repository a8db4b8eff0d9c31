"""Training through ``scaled_dot_product_attention``: dropout, what the backward keeps, transforms of functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.device.nn.test_sdpa import TOLERANCES, exact, heads, no_fallback  # noqa: F401

from torch_webgpu.aten.attention import sdpa
from torch_webgpu.aten.attention.attention_products import Dropout, kept

P = 0.3


def composed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> torch.Tensor:
    """Attention with these weights kept, on the CPU."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT / q.shape[3] ** 0.5
    if is_causal:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(-1) * keep / (1 - P)) @ v


def drop(*qkv: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False) -> tuple[torch.Tensor, ...]:
    """The operator's result on the device, and which weights it kept."""
    y, *_, seed, offset, _ = sdpa.FUSED(*qkv, mask, P, is_causal)
    return y, kept(Dropout(P, seed, offset), *qkv[:2]).cpu()


def live(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.detach().requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", [(2, 6, 3, 20, 37, 16, 24), (1, 4, 4, 3, 33, 8, 8)], ids=str)
def test_dropout(device, size, dtype):
    b, h, _, n, s, _, d = size
    qkv, grad = heads(*size, dtype), torch.randn(b, h, n, d).to(dtype)
    for mask, is_causal in (
        (None, False),
        (None, True),
        (torch.randn(n, s).to(dtype), False),
        (torch.rand(n, s) > 0.3, False),
    ):
        there = live(*[t.to(device) for t in qkv])
        y, keep = drop(*there, mask=None if mask is None else mask.to(device), is_causal=is_causal)
        here = live(*map(exact, qkv))
        want = composed(*here, keep, exact(mask), is_causal)
        pairs = [(y, want)]
        pairs += zip(
            torch.autograd.grad(y, there, grad.to(device)), torch.autograd.grad(want, here, exact(grad)), strict=True
        )
        for got, expected in pairs:
            tolerance = 4 * TOLERANCES[dtype] * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(got.cpu().double(), expected, rtol=0, atol=tolerance)


def test_every_call_drops_others_and_a_seed_repeats_them(device):
    q, k, v = (t.to(device) for t in heads(1, 4, 4, 40, 40, 8, 8, torch.float32))

    def attend() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=P)

    torch.webgpu.manual_seed(5)
    first, second = attend(), attend()
    torch.webgpu.manual_seed(5)
    assert torch.equal(attend(), first)
    assert torch.equal(attend(), second)
    assert not torch.equal(first, second)


def test_as_many_are_dropped_as_asked_for(device):
    q = torch.randn(2, 4, 64, 8, device=device)
    _, keep = drop(q, q, q)
    n = keep.numel()
    assert abs(keep.double().mean().item() - (1 - P)) < 5 * (P * (1 - P) / n) ** 0.5


def test_what_is_dropped_depends_on_no_neighbour(device):
    q = torch.randn(1, 4, 512, 8, device=device)
    _, keep = drop(q, q, q)
    rows = keep.double().flatten(0, 2) - (1 - P)
    for means in (rows.mean(0), rows.mean(1)):
        expected = P * (1 - P) / (rows.numel() / means.numel())
        assert abs(means.var().item() / expected - 1) < 5 * (2 / means.numel()) ** 0.5
    for down, along in ((0, 1), (0, 2), (0, 4), (1, 0), (1, 1), (2, 0), (512, 0), (3, 5)):
        pairs = rows[down:, along:] * rows[: rows.shape[0] - down, : rows.shape[1] - along]
        assert abs(pairs.mean().item()) < 5 * P * (1 - P) / pairs.numel() ** 0.5, (down, along)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_ends_of_dropout(device, p):
    q, k, v = (t.to(device) for t in heads(1, 2, 2, 20, 20, 8, 8, torch.float32))
    found = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v) if p == 0 else torch.zeros_like(v))


def test_no_probability(device):
    q = torch.randn(1, 2, 20, 8, device=device)
    with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
        F.scaled_dot_product_attention(q, q, q, dropout_p=1.1)


def test_gradients_of_gradients_with_dropout(device):
    qkv = heads(1, 4, 2, 18, 7, 8, 8, torch.float32)
    there, here = live(*[t.to(device) for t in qkv]), live(*map(exact, qkv))
    y, keep = drop(*there)
    found = []
    for out, leaves in ((y, there), (composed(*here, keep, None, False), here)):
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(t.sin().sum() for t in first), leaves))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-4, atol=1e-4)


def test_a_compiled_step_drops_what_an_eager_one_does(device):
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=P, is_causal=True)

    qkv = [t.to(device) for t in heads(1, 4, 2, 20, 20, 8, 8, torch.float32)]
    qkv[1:] = [t.repeat_interleave(2, 1) for t in qkv[1:]]
    found = []
    for fn in (attend, torch.compile(attend, fullgraph=True)):
        torch.webgpu.manual_seed(7)
        leaves = live(*qkv)
        steps = [fn(*leaves) for _ in range(2)]
        found.append([*steps, *torch.autograd.grad(sum(y.sin().sum() for y in steps), leaves)])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_nothing_as_large_as_the_scores_is_kept(device):
    q = torch.randn(1, 2, 256, 8, device=device, requires_grad=True)
    torch.webgpu.synchronize()
    before = torch.webgpu.memory_allocated()
    y = F.scaled_dot_product_attention(q, q, q, dropout_p=P)
    torch.webgpu.synchronize()
    assert torch.webgpu.memory_allocated() - before < 256 * 256
    y.sum().backward()


def test_gradients_of_each_sample(device):
    q, k, v = (t.to(device) for t in heads(3, 2, 2, 20, 20, 8, 8, torch.float32))

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q[None], k[None], v[None]).sin().sum()

    torch.testing.assert_close(
        torch.func.vmap(loss)(q, k, v).cpu(), torch.func.vmap(loss)(q.cpu(), k.cpu(), v.cpu()), rtol=1e-4, atol=1e-4
    )
    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))
    for got, want in zip(each(q, k, v), each(q.cpu(), k.cpu(), v.cpu()), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_of_large_scores_are_as_exact_as_the_cpus(device, dtype):
    """The logarithm of their sum rounds by more than the weights may, and so does a result that is kept in halves."""
    qkv, mask = [6 * t for t in heads(4, 4, 4, 20, 6, 8, 8, dtype)], torch.randn(20, 6).to(dtype)
    grad, found = torch.randn(4, 4, 20, 8).to(dtype), []
    for where, of in (("cpu", dtype), (device, dtype), ("cpu", torch.float64)):
        leaves = live(*[t.to(where, of) for t in qkv])
        y = F.scaled_dot_product_attention(*leaves, attn_mask=mask.to(where, of))
        found.append([g.cpu().double() for g in torch.autograd.grad(y, leaves, grad.to(where, of))])
    for cpu, got, want in zip(*found, strict=True):
        assert (got - want).abs().max() <= 1.1 * (cpu - want).abs().max()


def test_queries_that_see_nothing_have_no_gradients(device):
    hidden = torch.ones(20, 20, dtype=torch.bool).tril()
    hidden[5] = False
    qkv = heads(1, 2, 2, 20, 20, 8, 8, torch.float32)
    for mask in (hidden, torch.zeros(20, 20).masked_fill(~hidden, float("-inf"))):
        found = []
        for where in ("cpu", device):
            leaves = live(*[t.to(where) for t in qkv])
            y = F.scaled_dot_product_attention(*leaves, attn_mask=mask.to(where))
            found.append([y, *torch.autograd.grad(y.sin().sum(), leaves)])
        assert not found[1][1][:, :, 5].cpu().any()
        for want, got in zip(*found, strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
