"""Where the threads of a blocked product keep its operands in workgroup memory, by the indices that kernels compute."""

from __future__ import annotations

import re

import pytest

from torch_webgpu.kernels.matmul.operand import Side
from torch_webgpu.kernels.matmul.register_tile import block_text
from torch_webgpu.kernels.matmul.tile import RATES, Tile

LANES = 8
"""Threads whose vectors workgroup memory delivers at once, if all lie in different banks."""
TILES = (*RATES, Tile(128, 128, 16, 8, 8))


def places(text: str, pattern: str, thread: int) -> list[int]:
    """What the indices that match ``pattern`` are for ``thread``."""
    known = {"lid": thread}
    names = r"part_of_sum|place|tx|ty|[ab]_(?:k0|q0|to|from)"
    for name, value in re.findall(rf"^ +let ({names}) = (.*);$", text, re.MULTILINE):
        known[name] = evaluated(value, known)
    return [evaluated(found, known) for found in re.findall(pattern, text, re.MULTILINE)]


def evaluated(expression: str, known: dict[str, int]) -> int:
    return int(eval(re.sub(r"(\d)u\b", r"\1", expression).replace("/", "//"), {}, known))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("k_major", "runs"), [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("x", ["a", "b"])
def test_banks(tile, x, k_major, runs):
    """All of a step is stored, each vector once; what neighbouring threads store or read at once never shares a bank,
    unless it is the same vector.
    """
    text = block_text(tile, Side("a", k_major, runs), Side("b", k_major, runs), tail=False, together=4)
    text, *adding = re.split(r"^  if \(part_of_sum == ", text, flags=re.MULTILINE)
    assert bool(adding) == (tile.parts > 1)
    stores = [places(text, rf"^ +{x}_tile\[(.*)\] = ", thread) for thread in range(tile.threads)]
    reads = [places(text, rf"= {x}_tile\[(.*)\];$", thread) for thread in range(tile.threads)]
    size = {"a": tile.m, "b": tile.n}[x] * tile.k // 4
    assert sorted(at for found in stores for at in found) == list(range(size))
    assert {at for found in reads for at in found} == set(range(size))
    for accesses in (stores, reads):
        for first in range(0, tile.threads, LANES):
            for at_once in zip(*accesses[first : first + LANES], strict=True):
                different = set(at_once)
                assert len({at % LANES for at in different}) == len(different)
