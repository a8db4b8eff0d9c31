"""Blocked products: what those on registers and those on subgroup matrices share, and which tile is the fastest.

A workgroup computes a block of ``m`` x ``n`` sums step by step: it brings ``m`` x ``k`` values of operand a and ``k`` x
``n`` of operand b into workgroup memory and multiplies them (``register_tile.py``, ``matrix_tile.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch_webgpu.wgsl.launch import ParamList, grid_of

Grid = tuple[int, int, int]
Rates = tuple[float, float, float, int]


@dataclass(frozen=True)
class Tile:
    """Sizes of a block (``m``, ``n``), of a step (``k``), and of a thread's share (``tm``, ``tn``: multiples of 4).

    With two ``buffers`` a step's values are stored while the last one's may still be read, which saves a barrier.
    ``parts``: as many threads share a sum, each of which multiplies its part of a step's positions (sliced K).
    """

    m: int
    n: int
    k: int
    tm: int
    tn: int
    buffers: int = 1
    parts: int = 1

    @property
    def threads_of_part(self) -> int:
        return self.m // self.tm * (self.n // self.tn)

    @property
    def threads(self) -> int:
        return self.threads_of_part * self.parts

    @property
    def k_of_part(self) -> int:
        return self.k // self.parts


READ_AHEAD = 4
"""Vectors of four for which a thread has what an epilogue reads underway: each takes as long as memory, and a thread
has up to 32 of them.
"""

HUGE = Tile(128, 128, 8, 8, 16)
LARGE = Tile(128, 128, 8, 8, 8)
HALF = Tile(64, 128, 16, 8, 8)
MEDIUM = Tile(64, 64, 16, 8, 8)
LIGHT = Tile(64, 64, 16, 4, 4)
NARROW_SLICED = Tile(32, 64, 32, 4, 8, parts=2)
SMALL_SLICED = Tile(32, 32, 32, 4, 4, parts=2)
SMALL = Tile(32, 32, 16, 4, 4)
# How fast workgroups of each tile run, fitted to measurements on an H200, of the sliced ones on an H100: ``n`` of them
# on one compute unit do together ``rate * n / (n + idle)`` multiply-adds a nanosecond, up to ``full``. Each row: rate,
# idle, full, and how many of them a unit starts together, as it has room for no more and all are done at the same time.
#
# The sliced tiles' are for operands that come from memory. They reach a fifth more where one product is repeated
# and its operands stay in a cache. Models are not like that: ranked by that, the sliced tiles made some slower.
RATES = {
    HUGE: (199, 0.45, 166, 2),
    LARGE: (172, 0.31, 161, 1),
    HALF: (200, 1.25, 150, 1),
    MEDIUM: (385, 4.25, 158, 2),
    LIGHT: (175, 1.31, 119, 1),
    NARROW_SLICED: (150, 1.1, 115, 1),
    SMALL_SLICED: (130, 1.9, 92, 1),
    SMALL: (206, 7.91, 92, 1),
}
DIRECT = (
    Tile(16, 64, 4, 16, 8),
    Tile(32, 32, 4, 32, 4),
    Tile(16, 32, 4, 16, 4),
    Tile(8, 64, 4, 8, 8),
    Tile(4, 32, 4, 4, 4),
)
"""Those of software adapters (:mod:`.direct_tile`): eight invocations side by side, which are of the same rows."""
# On a software adapter (two cores): multiply-adds a nanosecond, and a part of the time it takes to compile the kernel.
SOFTWARE_RATES = dict(zip(DIRECT, ((22, 4e5), (21, 4e5), (19, 2e5), (16, 2e5), (8, 1e5)), strict=True))
GATHER_NS = 0.2
"""What a number of b costs there that is gathered, as those of windows are. It serves all rows of an invocation."""

UNITS = 132
"""Compute units of a large GPU. On a smaller one some sums are split that need not be."""
MIN_SPLIT_K = 64
"""The least length of sum that one workgroup of a split sum gets."""
START_K = 40
"""What starting a workgroup costs: as much as so many positions of its sums."""
MOST_SPLITS = 128
SPLIT_NS = 9_600
"""What the second kernel of a split sum costs by itself."""
PARTIAL_NS = 0.0021
"""What storing and reading a partial sum costs."""


class Block(Protocol):
    """The sizes of a workgroup's share."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...


AnyTile = TypeVar("AnyTile", bound=Block)


@dataclass(frozen=True)
class Blocking(Generic[AnyTile]):
    """The tile, and into how many partial sums of ``chunk`` positions each sum is split."""

    tile: AnyTile
    splits: int
    chunk: int

    @staticmethod
    def of(tile: AnyTile, splits: int, step: int, k: int) -> Blocking[AnyTile]:
        """Sums of ``k`` positions, in ``splits`` parts of whole steps; in fewer where these are enough."""
        chunk = -(-k // (splits * step)) * step
        return Blocking(tile, -(-k // chunk), chunk)


def blocks(tile: Block, m: int, n: int) -> int:
    return -(-m // tile.m) * -(-n // tile.n)


def product_ns(rates: Rates, tile: Block, splits: int, step: int, slices: int, m: int, n: int, k: int) -> float:
    """The time of a product on a large GPU: that of its busiest unit. ``step``: how many positions of its sums are
    multiplied at once.
    """
    rate, idle, full, together = rates
    groups = -(-slices * splits * blocks(tile, m, n) // UNITS)
    if groups > together:
        groups = -(-groups // together) * together
    length = -(-k // (splits * step)) * step
    return groups * tile.m * tile.n * (length + START_K) / min(full, rate * groups / (groups + idle))


def cost_ns(tile: Tile, splits: int, slices: int, m: int, n: int, k: int) -> float:
    """The time of a product on a large GPU, and of adding up its partial sums."""
    time = product_ns(RATES[tile], tile, splits, tile.k, slices, m, n, k)
    return time if splits == 1 else time + SPLIT_NS + slices * (splits + 1) * m * n * PARTIAL_NS


def software_cost_ns(tile: Tile, slices: int, m: int, n: int, k: int, gathers: bool) -> float:
    """The time of a product on the CPU, whose threads all work whatever the tile is."""
    rate, compiling = SOFTWARE_RATES[tile]
    products = slices * blocks(tile, m, n) * tile.m * tile.n * k
    return compiling + products * (1 / rate + gathers * GATHER_NS / tile.tm)


def software_blocking(slices: int, m: int, n: int, k: int, gathers: bool = False) -> Blocking[Tile]:
    """The fastest of the tiles for software adapters, which gain nothing from partial sums. ``gathers``: b does not lie
    in runs.
    """
    tile = min(DIRECT, key=lambda tile: software_cost_ns(tile, slices, m, n, k, gathers))
    return Blocking(tile, 1, -(-k // tile.k) * tile.k)


def blocking(slices: int, m: int, n: int, k: int, tiles: Sequence[Tile]) -> Blocking[Tile]:
    """The fastest of ``tiles`` and of the numbers of partial sums that are powers of two, up to 128."""
    counts = [1 << s for s in range(max(1, min(k // MIN_SPLIT_K, MOST_SPLITS).bit_length()))]
    options = [(tile, splits) for tile in tiles for splits in counts]
    tile, splits = min(options, key=lambda option: cost_ns(option[0], option[1], slices, m, n, k))
    return Blocking.of(tile, splits, tile.k, k)


def block_params(params: ParamList, chosen: Blocking[AnyTile], slices: int, m: int, n: int, k: int) -> Grid:
    """Adds the parameters of a blocked product; returns its grid."""
    tile = chosen.tile
    groups = slices * chosen.splits * blocks(tile, m, n)
    for name, value in (
        ("m", m),
        ("n", n),
        ("k", k),
        ("groups", groups),
        ("splits", chosen.splits),
        ("chunk", chosen.chunk),
    ):
        params.add(name, value)
    return grid_of(groups)


def lanes_of(first: int, count: int) -> str:
    """Accesses ``count`` numbers of a vector of four."""
    return "" if count == 4 else f".{'xyzw'[first : first + count]}"
