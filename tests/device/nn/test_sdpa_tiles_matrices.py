"""Attention over tiles of scores on subgroup matrices, which the adapter pretends to have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.device.linalg.matrices_emulated import NVIDIA, pretend
from tests.device.nn.test_sdpa import agrees, exact, heads, kernels, no_fallback  # noqa: F401
from tests.device.nn.test_sdpa_tiles import FORWARD, KEY, LARGEST, QUERY, check_gradients, close
from tests.device.nn.test_sdpa_tiles import able as able
from tests.device.nn.test_sdpa_tiles import tiled as tiled
from tests.device.nn.test_sdpa_training import composed, drop, live

from torch_webgpu.aten.attention import attention_tiles, sdpa
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.attention import flash_matrix
from torch_webgpu.kernels.attention.attention import Attention
from torch_webgpu.kernels.attention.flash_fragments import FragmentTile
from torch_webgpu.kernels.attention.flash_problem import Flash
from torch_webgpu.target import MatrixConfig

SMALL = FragmentTile(32, 32, 2)
SIZE = (2, 6, 3, 70, 37, 16, 24)
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture
def matrices(tiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_matrix, "IS_USED", True)
    monkeypatch.setattr(flash_matrix, "TILES", dict.fromkeys(flash_matrix.TILES, (SMALL,)))
    pretend(monkeypatch, NVIDIA)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_results(device, matrices, dtype):
    q, k, v = heads(*SIZE, dtype)
    there = [t.to(device) for t in (q, k, v)]
    names = kernels(lambda: F.scaled_dot_product_attention(*there, enable_gqa=True))
    assert names == [*([LARGEST] if dtype == torch.bfloat16 else []), f"{FORWARD}_matrix"]
    agrees(device, q, k, v, enable_gqa=True)
    agrees(device, q, k, v, enable_gqa=True, is_causal=True, scale=-0.3)
    for mask in (torch.rand(70, 37) > 0.9, torch.randn(2, 1, 1, 37).to(dtype)):
        agrees(device, q, k, v, enable_gqa=True, attn_mask=mask)


def test_compiled(device, matrices, monkeypatch):
    """Dynamo asks attention for its result's layout where no tensor has memory, on an adapter that has fast tiles."""
    monkeypatch.setattr(engine().device(0), "target", replace(engine().device(0).target, software=False))
    monkeypatch.setattr(attention_tiles, "BUSY_BLOCKS", 0)
    monkeypatch.setattr(sdpa, "KEPT_SCORES_BYTES", 1 << 40)
    torch._dynamo.reset()
    q, k, v = heads(*SIZE, torch.float16)
    attend = torch.compile(partial(F.scaled_dot_product_attention, enable_gqa=True), fullgraph=True)
    close(
        attend(*[t.to(device) for t in (q, k, v)]),
        F.scaled_dot_product_attention(*map(exact, (q, k, v)), enable_gqa=True),
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients(device, matrices, dtype):
    qkv = heads(*SIZE, dtype)
    there = live(*[t.to(device) for t in qkv])
    names = kernels(lambda: torch.autograd.grad(sdpa.FUSED(*there, None)[0].sin().sum(), there))
    buffers = 8 + (dtype == torch.bfloat16)  # whose sizes are measured before
    if buffers <= engine().device(0).target.max_buffers:
        assert {f"{QUERY}_matrix", f"{KEY}_matrix"} <= set(names)
    check_gradients(device, qkv, None)
    check_gradients(device, qkv, None, is_causal=True, scale=0.7)
    check_gradients(device, qkv, torch.rand(70, 37) > 0.7)


@pytest.mark.parametrize("tile", [FragmentTile(64, 32, 4), FragmentTile(32, 32, 1), FragmentTile(32, 64, 2)], ids=str)
def test_other_tiles(device, matrices, monkeypatch, tile):
    monkeypatch.setattr(flash_matrix, "TILES", dict.fromkeys(flash_matrix.TILES, (tile,)))
    qkv = heads(1, 2, 1, 70, 50, 40, 8, torch.float16)
    agrees(device, *qkv, is_causal=True, enable_gqa=True)
    check_gradients(device, qkv, None, is_causal=True)


@pytest.mark.parametrize(
    ("config", "tile"),
    [
        (MatrixConfig("f16", "f32", 8, 8, 8, 32), FragmentTile(32, 32, 4)),
        (MatrixConfig("f16", "f32", 8, 8, 8, 32), FragmentTile(32, 32, 2)),
        (MatrixConfig("f16", "f32", 8, 16, 16, 16), FragmentTile(16, 32, 2)),
        (MatrixConfig("f16", "f32", 16, 16, 16, 64), FragmentTile(64, 32, 2)),
    ],
    ids=["four threads a row", "two fragments down", "subgroups of 16", "subgroups of 64"],
)
def test_other_matrices(device, tiled, monkeypatch, config, tile):
    """Fragments and subgroups of other adapters: of a row one thread has 8, 16 or 32 columns."""
    monkeypatch.setattr(flash_matrix, "TILES", dict.fromkeys(flash_matrix.TILES, (tile,)))
    pretend(monkeypatch, config)
    qkv = heads(1, 2, 1, 70, 50, 40, 8, torch.float16)
    there = [t.to(device) for t in qkv]
    assert kernels(lambda: F.scaled_dot_product_attention(*there, enable_gqa=True)) == [f"{FORWARD}_matrix"]
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


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_masks_of_the_lowest_numbers(device, matrices, dtype):
    """A query all of whose keys have them added weighs these by what is left of their scores: in bfloat16 equally."""
    qkv = heads(1, 2, 2, 33, 40, 8, 8, dtype)
    mask = torch.zeros(33, 40, dtype=dtype)
    mask[1], mask[2, 3:] = torch.finfo(dtype).min, torch.finfo(dtype).min
    agrees(device, *qkv, attn_mask=mask)


@pytest.mark.parametrize(("size", "dtype"), [(SIZE, HALVES[0]), ((1, 2, 2, 35, 36, 8, 8), HALVES[1])], ids=str)
def test_dropout(device, matrices, size, dtype):
    b, h, _, n, _, _, d = size
    qkv, grad = heads(*size, dtype), torch.randn(b, h, n, d).to(dtype)
    there, here = live(*[t.to(device) for t in qkv]), live(*map(exact, qkv))
    y, keep = drop(*there, is_causal=True)
    want = composed(*here, keep, None, True)
    close(y.detach(), want.detach())
    expected = torch.autograd.grad(want, here, exact(grad))
    for got, one in zip(torch.autograd.grad(y, there, grad.to(device)), expected, strict=True):
        close(got, one)


def test_what_matrices_do_not_multiply_is_multiplied_in_registers(device, matrices):
    for dtype, width in ((torch.float32, 16), (torch.bfloat16, 20), (torch.float16, 12)):
        q = torch.randn(1, 2, 40, width).to(dtype).to(device)
        assert kernels(lambda q=q: F.scaled_dot_product_attention(q, q, q)) == [FORWARD]


def test_every_adapter_with_matrices_has_a_tile_for_usual_heads(device):
    target = replace(engine().device(0).target, matrices=(NVIDIA,), workgroup_bytes=49152)
    for kernel, memory in flash_matrix.MEMORY.items():
        for width in (64, 80, 96, 128):
            tiles = [tile for tile in flash_matrix.TILES[kernel] if tile.suits(NVIDIA)]
            assert any(memory(width, width, tile, NVIDIA).size_bytes <= target.workgroup_bytes for tile in tiles)


def test_blocks_follow_from_how_many_workgroups_there_are(device):
    target = replace(engine().device(0).target, matrices=(NVIDIA,), workgroup_bytes=49152)

    def tile(b: int, h: int, n: int, width: int, causal: bool) -> FragmentTile:
        spec = Spec("f16", (b, h, n, width), (h * n * width, n * width, width, 1))
        lse = Spec("f32", (b, h, n), (h * n, n, 1))
        p = Flash(Attention(0.1, causal, False), spec, spec, spec, None, (), spec, 0.0, None, (spec, lse), 5)
        chosen = flash_matrix.choice("forward", p, target)
        assert chosen is not None
        return chosen[0]

    assert tile(4, 16, 2048, 64, False) == tile(2, 8, 4096, 40, False) == flash_matrix.LARGE
    assert tile(1, 12, 1500, 64, False) == tile(1, 32, 2048, 128, True) == flash_matrix.MEDIUM
    assert tile(1, 14, 512, 64, True) == flash_matrix.LONG
    assert tile(1, 14, 512, 128, True) == flash_matrix.MEDIUM


@pytest.mark.parametrize("sizes", [(1e6, 1e-6, 1e20, 1e-20), (1e-12, 1e12, 1e-25, 1e-9), (1, 1, 0, 1)], ids=str)
def test_bfloat16_of_sizes_that_float16_has_not(device, matrices, sizes):
    q, k, v = (t * size for t, size in zip(heads(1, 2, 2, 40, 50, 16, 16, torch.bfloat16), sizes))
    grad = (torch.randn(1, 2, 40, 16) * sizes[3]).bfloat16()
    here, there = live(*map(exact, (q, k, v))), live(*[t.to(device) for t in (q, k, v)])
    y = sdpa.FUSED(*there, None)[0]
    want = (here[0] @ here[1].mT / 4).softmax(-1) @ here[2]
    expected = want, *torch.autograd.grad(want, here, grad.double())
    for got, one in zip((y, *torch.autograd.grad(y, there, grad.to(device))), expected, strict=True):
        largest = one.abs().max().clamp(min=1e-37)
        torch.testing.assert_close(got.detach().cpu().double() / largest, one.detach() / largest, rtol=0, atol=0.03)
