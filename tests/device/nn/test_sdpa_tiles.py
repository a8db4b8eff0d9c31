"""Attention over tiles of scores: results, gradients, dropout and memory, against the CPU in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.choices import forget
from tests.device.nn.test_sdpa import TOLERANCES, agrees, exact, heads, kernels, no_fallback  # noqa: F401
from tests.device.nn.test_sdpa_products import gradients
from tests.device.nn.test_sdpa_training import composed, drop, live

from torch_webgpu.aten.attention import sdpa
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.attention import flash, flash_register
from torch_webgpu.kernels.attention.attention import Rules
from torch_webgpu.kernels.attention.flash_tile import FlashTile

SIZES = [
    (2, 6, 3, 70, 37, 16, 24),
    (2, 2, 1, 17, 67, 5, 3),
    (1, 2, 2, 33, 64, 128, 72),
]
FORWARD, QUERY, KEY = "flash_attention", "flash_attention_query", "flash_attention_key"
LARGEST = "flash_attention_largest"


def only(monkeypatch: pytest.MonkeyPatch, tile: FlashTile) -> None:
    monkeypatch.setattr(flash_register, "SOFTWARE_TILES", (tile,))
    monkeypatch.setattr(flash_register, "TILES", dict.fromkeys(flash_register.TILES, (tile,)))


def tile_kernels(fn: Callable[[], Any]) -> list[str]:
    """The names of the kernels that ``fn`` runs, whatever they multiply with."""
    return [name.removesuffix("_matrix") for name in kernels(fn) if name != LARGEST]


@pytest.fixture
def able() -> None:
    target = engine().device(0).target
    if target.software and target.dialect == "tint":
        pytest.skip("the kernels are not used where they take minutes to compile")


@pytest.fixture
def tiled(able: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few scores there are, they are not kept; blocks are those that compile fastest."""
    monkeypatch.setattr(sdpa, "KEPT_SCORES_BYTES", 0)
    only(monkeypatch, flash_register.SMALL)
    forget(monkeypatch)
    yield
    forget(monkeypatch)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Errors are relative to the largest sums."""
    tolerance = 4 * TOLERANCES[got.dtype] * max(1.0, want.abs().max().item())
    torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=tolerance)


def check_gradients(device: Any, qkv: tuple[torch.Tensor, ...], mask: torch.Tensor | None, **options: Any) -> None:
    grad = torch.randn(*qkv[0].shape[:3], qkv[2].shape[3]).to(qkv[0].dtype)
    expected = gradients([*map(exact, qkv), None if mask is None else mask], grad.double(), **options)
    there = [None if t is None else t.to(device) for t in (*qkv, mask)]
    for got, want in zip(gradients(there, grad.to(device), **options), expected, strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_results(device, tiled, size, dtype):
    b, h, g, n, s, _, _ = size
    q, k, v = heads(*size, dtype)
    there = [t.to(device) for t in (q, k, v)]
    assert tile_kernels(lambda: F.scaled_dot_product_attention(*there, enable_gqa=h != g)) == [FORWARD]
    agrees(device, q, k, v, enable_gqa=h != g)
    agrees(device, q, k, v, enable_gqa=h != g, is_causal=True, scale=-0.3)
    for mask in (torch.rand(n, s) > 0.9, torch.randn(b, 1, 1, s).to(dtype)):
        agrees(device, q, k, v, enable_gqa=h != g, attn_mask=mask)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES[:2], ids=str)
def test_gradients(device, tiled, size, dtype):
    qkv = heads(*size, dtype)
    check_gradients(device, qkv, None)
    check_gradients(device, qkv, None, is_causal=True, scale=0.7)
    check_gradients(device, qkv, torch.rand(size[3], size[4]) > 0.7)


def test_gradients_under_a_mask_that_is_added(device, tiled):
    size = SIZES[0]
    qkv, grad = heads(*size, torch.float32), torch.randn(2, 6, 70, 24)
    mask = torch.randn(6, 1, 37).masked_fill(torch.rand(6, 1, 37) > 0.9, float("-inf"))
    here, there = live(*map(exact, qkv)), live(*[t.to(device) for t in qkv])
    y = sdpa.FUSED(*there, mask.to(device))[0]
    k, v = (t.repeat_interleave(2, 1) for t in here[1:])
    want = (here[0] @ k.mT / 4 + mask.double()).softmax(-1) @ v
    close(y.detach(), want.detach())
    wanted = torch.autograd.grad(want, here, grad.double())
    for got, expected in zip(torch.autograd.grad(y, there, grad.to(device)), wanted, strict=True):
        close(got, expected)


def test_the_gradient_of_a_mask_comes_from_products(device, tiled):
    qkv, mask = heads(*SIZES[1], torch.float32), torch.randn(17, 67)
    grad = torch.randn(2, 2, 17, 3)
    expected = gradients([*map(exact, (*qkv, mask))], grad.double())
    there = [t.to(device) for t in (*qkv, mask)]
    names = tile_kernels(lambda: gradients(there, grad.to(device)))
    assert FORWARD in names
    assert QUERY not in names
    for got, want in zip(gradients(there, grad.to(device)), expected, strict=True):
        close(got, want)


def test_only_what_is_wanted_is_computed(device, tiled):
    q, k, v = (t.to(device) for t in heads(*SIZES[1], torch.float32))

    def train(leaf: torch.Tensor) -> None:
        leaf.requires_grad_()
        torch.autograd.grad(sdpa.FUSED(q, k, v, None)[0].sum(), [leaf])
        leaf.requires_grad_(False)

    assert {QUERY, KEY} & set(tile_kernels(lambda: train(q))) == {QUERY}
    assert {QUERY, KEY} & set(tile_kernels(lambda: train(v))) == {KEY}


@pytest.mark.parametrize("tile", [flash_register.SQUARE, flash_register.DENSE, flash_register.FLAT], ids=str)
def test_tiles_of_gpus(device, tiled, monkeypatch, tile):
    only(monkeypatch, tile)
    qkv = heads(1, 2, 1, 70, 135, 20, 72, torch.float32)
    agrees(device, *qkv, is_causal=True, enable_gqa=True)
    check_gradients(device, qkv, None, is_causal=True)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_layouts(device, tiled, dtype):
    shape = (2, 3, 20, 8)
    plain = torch.randn(shape).to(dtype)
    moved = torch.randn(2, 20, 3, 8).to(dtype).transpose(1, 2)
    column = torch.randn(2, 3, 8, 20).to(dtype).mT
    part = torch.randn(2, 3, 25, 11).to(dtype)[:, :, 2:22, 3:]
    spread = torch.randn(1, 1, 20, 8).to(dtype).expand(shape)
    for q, k, v in ((moved, moved, moved), (part, moved, column), (plain, column, part), (moved, spread, plain)):
        agrees(device, q, k, v)
        agrees(device, q, k, v, attn_mask=(torch.randn(20, 20).mT > 0).expand(2, 3, 20, 20))
        there = live(*[t.to(device) for t in (q, k, v)])
        y = sdpa.FUSED(*there, None)[0]
        assert y.stride() == torch.empty_like(there[0]).stride()
        for leaf, found in zip(there, torch.autograd.grad(y.sum(), there), strict=True):
            assert found.stride() == torch.empty_like(leaf).stride()
    check_gradients(device, (part, moved, column), None)


def test_queries_that_see_nothing_give_zeros(device, tiled):
    qkv = heads(1, 2, 2, 33, 40, 8, 8, torch.float32)
    mask = torch.ones(33, 40, dtype=torch.bool)
    mask[1] = False
    hidden = torch.zeros(33, 40)
    for m in (mask, *(hidden.masked_fill(~mask, low) for low in (float("-inf"), torch.finfo(torch.float32).min))):
        agrees(device, *qkv, attn_mask=m)
    _, lse, *_ = sdpa.FUSED(*[t.to(device) for t in qkv], mask.to(device))
    assert lse[:, :, 1].eq(torch.finfo(torch.float32).max).all()
    check_gradients(device, qkv, mask)


def test_infinities_and_nans(device, tiled):
    q, k, v = heads(1, 2, 2, 17, 40, 8, 8, torch.float32)
    for value in (float("inf"), float("-inf"), float("nan")):
        for t in (q, k, v):
            before, t[0, 0, 1, 2] = t[0, 0, 1, 2].item(), value
            agrees(device, q, k, v)
            t[0, 0, 1, 2] = before


def test_large_scores_do_not_overflow(device, tiled):
    q, k, v = heads(1, 2, 2, 33, 70, 8, 8, torch.float32)
    agrees(device, q * 1e4, k.sign(), v)
    agrees(device, q.half() * 1e3, k.half().sign() * 100, v.half())
    k[:, :, :, 0] = torch.linspace(-50, 50, 70)  # the greatest score grows from block to block
    agrees(device, q + 3, k, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [SIZES[0], (1, 2, 2, 35, 36, 8, 8)], ids=str)
def test_dropout(device, tiled, size, dtype):
    b, h, _, n, s, _, d = size
    qkv, grad = heads(*size, dtype), torch.randn(b, h, n, d).to(dtype)
    for mask, is_causal in ((None, True), (torch.rand(n, s) > 0.3, False)):
        there, here = live(*[t.to(device) for t in qkv]), live(*map(exact, qkv))
        y, keep = drop(*there, mask=None if mask is None else mask.to(device), is_causal=is_causal)
        want = composed(*here, keep, mask, is_causal)
        close(y.detach(), want.detach())
        expected = torch.autograd.grad(want, here, exact(grad))
        for got, one in zip(torch.autograd.grad(y, there, grad.to(device)), expected, strict=True):
            close(got, one)


@pytest.mark.parametrize(
    "rules", [Rules(), Rules(hides=True, fill=-1e9), Rules(fill=float("-inf"), zeros=False)], ids=str
)
def test_attention_that_a_program_writes_out(device, tiled, rules):
    q, k, v = heads(2, 2, 2, 20, 37, 8, 8, torch.float32)
    mask = torch.rand(20, 37) > 0.5
    mask[3] = rules.hides
    scores = (q.double() @ k.double().mT * 0.3).masked_fill(mask if rules.hides else ~mask, rules.fill)
    want = scores.softmax(-1) @ v.double()
    if rules.zeros and rules.fill == float("-inf"):
        want = want.nan_to_num()
    there = [t.to(device) for t in (q, k, v, mask)]
    for is_merged, strides in ((False, (320, 160, 8, 1)), (True, (320, 8, 16, 1))):
        got = sdpa.written_out(*there, 0.3, rules, is_merged)
        assert got.stride() == strides
        torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_compiled_step_trains_as_an_eager_one(device, tiled):
    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sin().sum()

    qkv = [t.to(device) for t in heads(1, 4, 2, 40, 40, 8, 8, torch.float32)]
    found = []
    for fn in (loss, torch.compile(loss, fullgraph=True)):
        leaves = live(*[t.clone() for t in qkv])
        fn(*leaves).backward()
        found.append([t.grad for t in leaves])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_long_contexts_need_no_memory_for_scores(device, able, monkeypatch):
    n = 4200
    monkeypatch.setattr(sdpa, "KEPT_SCORES_BYTES", 4 * n * n - 1)
    q, k, v = (torch.randn(1, 1, n, 8, device=device, requires_grad=True) for _ in range(3))
    torch.webgpu.synchronize()
    torch.webgpu.reset_peak_memory_stats()
    before = torch.webgpu.max_memory_allocated()
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.sum().backward()
    torch.webgpu.synchronize()
    assert torch.webgpu.max_memory_allocated() - before < n * n
    want = F.scaled_dot_product_attention(*[t.detach().cpu().double() for t in (q, k, v)], is_causal=True)
    close(y.detach(), want)


def test_small_adapters_have_a_tile_and_others_keep_the_scores(device):
    target = replace(engine().device(0).target, dialect="naga")
    assert not flash.fits((1, 1, 100, 128), 100, 128, replace(target, dialect="tint", software=True))
    assert flash.fits((1, 1, 100, 128), 100, 128, target)
    assert not flash.fits((1, 1, 100, 129), 100, 64, target)
    assert not flash.fits((65536, 1, 100, 64), 100, 64, target)
    for size_bytes in (16384, 32768, 49152):
        for kernel in flash_register.TILES:
            tile = flash_register.tile_for(kernel, 32, replace(target, software=False, workgroup_bytes=size_bytes))
            assert tile.workgroup_bytes(32) <= size_bytes
