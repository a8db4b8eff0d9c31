"""Tiles of blocked products: what they need of a device, and which one is chosen."""

from __future__ import annotations

import re

import pytest

from torch_webgpu.kernels.conv import conv
from torch_webgpu.kernels.matmul import matmul
from torch_webgpu.kernels.matmul.direct_tile import direct_text
from torch_webgpu.kernels.matmul.operand import Side
from torch_webgpu.kernels.matmul.register_tile import block_text
from torch_webgpu.kernels.matmul.tile import (
    DIRECT,
    HUGE,
    MIN_SPLIT_K,
    NARROW_SLICED,
    RATES,
    blocking,
    blocks,
    software_blocking,
)

TILES = tuple(RATES)
WORKGROUP_BYTES = 16 << 10
SIZES = [(1, 1, 1), (13, 20, 1700), (8, 4096, 4096), (64, 576, 100_352), (1024, 1024, 1024), (4096, 4096, 4096)]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("runs", [True, False])
def test_tiles_fit_every_device(tile, k_major, runs):
    text = block_text(tile, Side("a", k_major, runs), Side("b", k_major, runs), tail=True)
    quads = sum(map(int, re.findall(r"var<workgroup> \w+: array<vec4<f32>, (\d+)>", text)))
    assert quads * 16 <= WORKGROUP_BYTES
    assert tile.threads <= 256
    # Each thread loads the same number of quads of either operand, and at least one.
    assert (tile.m // 4 * tile.k) % tile.threads == 0
    assert (tile.n // 4 * tile.k) % tile.threads == 0


def test_every_tile_has_its_costs():
    assert set(matmul.TILES) | set(conv.TILES) <= set(RATES)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("software", [True, False])
def test_parts_cover_the_sum(m, n, k, software):
    chosen = software_blocking(1, m, n, k) if software else blocking(1, m, n, k, TILES)
    assert chosen.chunk % chosen.tile.k == 0
    assert (chosen.splits - 1) * chosen.chunk < k <= chosen.splits * chosen.chunk


def test_small_products_take_small_tiles_and_large_ones_fill_the_gpu():
    assert blocking(1, 20, 20, 20, TILES).tile == min(TILES, key=lambda tile: tile.m * tile.n)
    assert blocking(1, 4096, 4096, 4096, TILES).tile == HUGE
    deep = blocking(1, 128, 128, 16_384, TILES)
    assert deep.splits * blocks(deep.tile, 128, 128) >= 64
    assert deep.chunk >= MIN_SPLIT_K


def test_products_of_few_blocks_share_their_sums_among_threads():
    """BERT-base's: 192 blocks of 64 x 64 leave most of a GPU's threads idle where one thread has the whole of a sum."""
    assert blocking(1, 1024, 768, 768, matmul.TILES).tile == NARROW_SLICED


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.parts > 1], ids=str)
def test_parts_of_sums_fit_in_the_memory_of_the_operands(tile):
    assert tile.m * tile.n <= (tile.m + tile.n) * tile.k * tile.buffers


def test_software_adapters_get_one_part():
    assert all(software_blocking(1, *size).splits == 1 for size in SIZES)


def test_software_adapters_take_tiles_of_the_product():
    assert software_blocking(1, 512, 512, 512).tile == DIRECT[0]
    assert software_blocking(1, 512, 512, 512, gathers=True).tile.tm == max(tile.tm for tile in DIRECT)
    assert software_blocking(1, 4, 20, 64).tile == DIRECT[-1]
    assert software_blocking(1, 8, 512, 2048).tile.m == 8


@pytest.mark.parametrize("tile", DIRECT, ids=str)
@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_software_adapters_get_no_barriers(tile, k_major, runs, shared):
    """Nor workgroup memory, which is memory like any other there."""
    sides = Side("a", k_major, runs), Side("b", k_major, runs)
    text = direct_text(tile, *sides, tail=True, together=4, heavy=False, shared=shared)
    assert "workgroupBarrier" not in text
    assert "var<workgroup>" not in text


def test_lanes_that_share_rows_are_a_workgroup():
    """So a subgroup's first four lanes have what all of it multiplies, however many lanes it has."""
    assert all((tile.m, tile.k, tile.threads) == (tile.tm, 4, 8) for tile in DIRECT)
