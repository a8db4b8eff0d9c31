"""Attention over tiles of scores on subgroup matrices, which the adapter pretends to have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.device.linalg.matrices_emulated import NVIDIA, pretend
from tests.device.nn.test_sdpa import agrees, exact, heads, kernels, no_fallback  # noqa: F401
from tests.device.nn.test_sdpa_tiles import FORWARD, KEY, QUERY, check_gradients, close
from tests.device.nn.test_sdpa_tiles import tiled as tiled
from tests.device.nn.test_sdpa_training import composed, drop, live

from torch_webgpu.aten import sdpa
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels import flash_matrix
from torch_webgpu.kernels.flash_fragments import FragmentTile

SMALL = FragmentTile(32, 32, 2, 2)
SIZE = (2, 6, 3, 70, 37, 16, 24)


@pytest.fixture
def matrices(tiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_matrix, "IS_USED", True)
    monkeypatch.setattr(flash_matrix, "TILES", dict.fromkeys(flash_matrix.TILES, (SMALL,)))
    pretend(monkeypatch, NVIDIA)


def test_results(device, matrices):
    q, k, v = heads(*SIZE, torch.float16)
    there = [t.to(device) for t in (q, k, v)]
    names = kernels(lambda: F.scaled_dot_product_attention(*there, enable_gqa=True))
    assert names == [f"{FORWARD}_matrix"]
    agrees(device, q, k, v, enable_gqa=True)
    agrees(device, q, k, v, enable_gqa=True, is_causal=True, scale=-0.3)
    for mask in (torch.rand(70, 37) > 0.9, torch.randn(2, 1, 1, 37).half()):
        agrees(device, q, k, v, enable_gqa=True, attn_mask=mask)


def test_gradients(device, matrices):
    qkv = heads(*SIZE, torch.float16)
    there = live(*[t.to(device) for t in qkv])
    names = kernels(lambda: torch.autograd.grad(sdpa.FUSED(*there, None)[0].sin().sum(), there))
    assert {f"{QUERY}_matrix", f"{KEY}_matrix"} <= set(names)
    check_gradients(device, qkv, None)
    check_gradients(device, qkv, None, is_causal=True, scale=0.7)
    check_gradients(device, qkv, torch.rand(70, 37) > 0.7)


@pytest.mark.parametrize("tile", [FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 1)], ids=str)
def test_other_tiles(device, matrices, monkeypatch, tile):
    monkeypatch.setattr(flash_matrix, "TILES", dict.fromkeys(flash_matrix.TILES, (tile,)))
    qkv = heads(1, 2, 1, 70, 50, 40, 8, torch.float16)
    agrees(device, *qkv, is_causal=True, enable_gqa=True)
    check_gradients(device, qkv, None, is_causal=True)


def test_scores_that_grow_from_block_to_block(device, matrices):
    q, k, v = heads(1, 2, 2, 33, 130, 8, 8, torch.float16)
    k[:, :, :, 0] = torch.linspace(-20, 20, 130)
    agrees(device, q + 3, k, v)
    agrees(device, q * 100, k.sign() * 100, v)


def test_queries_that_see_nothing_give_zeros(device, matrices):
    qkv = heads(1, 2, 2, 33, 40, 8, 8, torch.float16)
    mask = torch.ones(33, 40, dtype=torch.bool)
    mask[1] = False
    hidden = torch.zeros(33, 40, dtype=torch.float16)
    for m in (mask, *(hidden.masked_fill(~mask, low) for low in (float("-inf"), torch.finfo(torch.float16).min))):
        agrees(device, *qkv, attn_mask=m)
    _, lse, *_ = sdpa.FUSED(*[t.to(device) for t in qkv], mask.to(device))
    assert lse[:, :, 1].eq(torch.finfo(torch.float32).max).all()


@pytest.mark.parametrize("size", [SIZE, (1, 2, 2, 35, 36, 8, 8)], ids=str)
def test_dropout(device, matrices, size):
    b, h, _, n, _, _, d = size
    qkv, grad = heads(*size, torch.float16), torch.randn(b, h, n, d).half()
    there, here = live(*[t.to(device) for t in qkv]), live(*map(exact, qkv))
    y, keep = drop(*there, is_causal=True)
    want = composed(*here, keep, None, True)
    close(y.detach(), want.detach())
    expected = torch.autograd.grad(want, here, exact(grad))
    for got, one in zip(torch.autograd.grad(y, there, grad.to(device)), expected, strict=True):
        close(got, one)


def test_what_matrices_do_not_multiply_is_multiplied_in_registers(device, matrices):
    for dtype, width in ((torch.float32, 16), (torch.bfloat16, 16), (torch.float16, 12)):
        q = torch.randn(1, 2, 40, width).to(dtype).to(device)
        assert kernels(lambda q=q: F.scaled_dot_product_attention(q, q, q)) == [FORWARD]


def test_every_adapter_with_matrices_has_a_tile_for_usual_heads(device):
    caps = replace(engine().device(0).caps, matrices=(NVIDIA,), workgroup_bytes=49152)
    for kernel, memory in flash_matrix.MEMORY.items():
        for width in (64, 80, 96, 128):
            tiles = [tile for tile in flash_matrix.TILES[kernel] if tile.suits(NVIDIA)]
            assert any(memory(width, width, tile, NVIDIA).size_bytes <= caps.workgroup_bytes for tile in tiles)
