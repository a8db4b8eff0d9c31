"""Blocked products: the part that matrix products and convolutions share, written out for a tile size.

A workgroup computes a block of ``m`` x ``n`` sums. Step by step it brings ``m`` x ``k`` values of operand a and ``k`` x
``n`` of operand b into workgroup memory. Each thread keeps its ``tm`` x ``tn`` sums in named vec4 variables: private
arrays would live in memory. Where the operands come from is the body's business: it declares

* ``alias ARow``, ``fn a_row(slice: u32, m: u32) -> ARow``: what is fixed for row ``m`` of a
* ``alias AStep``, ``fn a_step(slice: u32, k: u32) -> AStep``: what is fixed for position ``k`` of the sum
* ``fn a_value(row: ARow, step: AStep) -> f32``, and the same three for the columns of b
* ``fn finish(slice: u32, split: u32, m: u32, n: u32, sums: V)``: stores sum (m, n) or, of ``pairs`` (V is a vec2), also
  (m, n + 1); they may lie outside

and parameters ``m``, ``n``, ``k``, and those of :func:`block_params`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch_webgpu.wgsl.launch import MAX_GROUPS, ParamList

Grid = tuple[int, int, int]
Rates = tuple[float, float, float, int]


@dataclass(frozen=True)
class Tile:
    """Sizes of a block (``m``, ``n``), of a step (``k``), and of a thread's share (``tm``, ``tn``: multiples of 4).

    With two ``buffers`` a step's values are stored while the last one's may still be read, which saves a barrier.
    """

    m: int
    n: int
    k: int
    tm: int
    tn: int
    buffers: int = 1

    @property
    def threads(self) -> int:
        return self.m // self.tm * (self.n // self.tn)


HUGE = Tile(128, 128, 8, 8, 16)
LARGE = Tile(128, 128, 8, 8, 8)
HALF = Tile(64, 128, 16, 8, 8)
MEDIUM = Tile(64, 64, 16, 8, 8)
LIGHT = Tile(64, 64, 16, 4, 4)
SMALL = Tile(32, 32, 16, 4, 4)
# How fast workgroups of each tile run, fitted to measurements on an H200: ``n`` of them on one compute unit do together
# ``rate * n / (n + idle)`` multiply-adds a nanosecond, up to ``full``. Each row: rate, idle, full, and how many of them
# a unit starts together, as it has room for no more and all are done at the same time.
RATES = {
    HUGE: (199, 0.45, 166, 2),
    LARGE: (172, 0.31, 161, 1),
    HALF: (209, 1.18, 157, 1),
    MEDIUM: (330, 4.85, 141, 2),
    LIGHT: (179, 1.31, 117, 1),
    SMALL: (206, 7.91, 92, 1),
}
# On a software adapter (two cores): multiply-adds a nanosecond, and a part of the time it takes to compile the kernel.
SOFTWARE_RATES = {
    HUGE: (4.7, 2.5e6),
    LARGE: (4.5, 2.5e6),
    HALF: (4.5, 1.2e6),
    MEDIUM: (4.5, 6e5),
    LIGHT: (3.2, 4e5),
    SMALL: (2.4, 2e5),
}

UNITS = 132
"""Compute units of a large GPU. On a smaller one some sums are split that need not be."""
MIN_SPLIT_K = 64
"""The least length of sum that one workgroup of a split sum gets."""
START_K = 40
"""What starting a workgroup costs: as much as so many positions of its sums."""
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


def blocks(tile: Block, m: int, n: int) -> int:
    return -(-m // tile.m) * -(-n // tile.n)


def cost_ns(rates: Rates, tile: Block, splits: int, slices: int, m: int, n: int, k: int) -> float:
    """The time of a product on a large GPU: that of its busiest unit, and of adding up partial sums."""
    rate, idle, full, together = rates
    groups = -(-slices * splits * blocks(tile, m, n) // UNITS)
    if groups > together:
        groups = -(-groups // together) * together
    time = groups * tile.m * tile.n * (k / splits + START_K) / min(full, rate * groups / (groups + idle))
    return time if splits == 1 else time + SPLIT_NS + slices * (splits + 1) * m * n * PARTIAL_NS


def software_cost_ns(tile: Tile, slices: int, m: int, n: int, k: int) -> float:
    """The time of a product on the CPU, whose threads all work whatever the tile is."""
    rate, compiling = SOFTWARE_RATES[tile]
    return compiling + slices * blocks(tile, m, n) * tile.m * tile.n * k / rate


def blocking(slices: int, m: int, n: int, k: int, tiles: Sequence[Tile], software: bool = False) -> Blocking[Tile]:
    """The fastest of ``tiles`` and, on a GPU, of the numbers of partial sums that are powers of two, up to 128."""
    if software:
        tile = min(tiles, key=lambda tile: software_cost_ns(tile, slices, m, n, k))
        return Blocking(tile, 1, -(-k // tile.k) * tile.k)
    counts = [1 << s for s in range(max(1, min(8, (k // MIN_SPLIT_K).bit_length())))]
    options = [(tile, splits) for tile in tiles for splits in counts]
    tile, splits = min(options, key=lambda option: cost_ns(RATES[option[0]], option[0], option[1], slices, m, n, k))
    chunk = -(-k // (splits * tile.k)) * tile.k
    return Blocking(tile, -(-k // chunk), chunk)


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
    rows = -(-groups // MAX_GROUPS)
    return (-(-groups // rows), rows, 1)


def which_block(tile: Block) -> list[str]:
    """Statements that say which block, of which slice and which part of its sums, a workgroup computes."""
    return [
        "  let group = wid.y * nwg.x + wid.x;",
        "  if (group >= P.groups) { return; }",
        f"  let tiles_m = (P.m + {tile.m - 1}u) / {tile.m}u;",
        f"  let tiles_n = (P.n + {tile.n - 1}u) / {tile.n}u;",
        f"  let n0 = group % tiles_n * {tile.n}u;",
        "  let above = group / tiles_n;",
        f"  let m0 = above % tiles_m * {tile.m}u;",
        "  let part = above / tiles_m;",
        "  let slice = part / P.splits;",
        "  let split = part % P.splits;",
        "  let k_begin = split * P.chunk;",
        "  let k_end = min(P.k, k_begin + P.chunk);",
    ]


@dataclass(frozen=True)
class _Side:
    """How the threads share the loading of one operand.

    ``x``: "a" or "b"; ``size``: rows of the block; ``k_major``: neighbouring threads load neighbouring positions of the
    sum (because those are neighbours in memory) rather than neighbouring rows. A thread loads a quad of rows at a time:
    ``together`` neighbours (1 or 2), the others a half or a quarter of the block away, so that the threads' loads and
    stores are neighbours in memory.
    """

    x: str
    size: int
    tile: Tile
    k_major: bool
    together: int

    def row(self, quad: str, e: int) -> str:
        """Row ``e`` of a quad."""
        away = e // self.together * (self.size * self.together // 4) + e % self.together
        extent = {"a": "m", "b": "n"}[self.x]
        return f"{extent}0 + {self.together}u * ({quad}) + {away}u"

    @property
    def quads(self) -> int:
        return self.size // 4

    @property
    def loads(self) -> int:
        """Quads of one step that each thread loads."""
        return self.quads * self.tile.k // self.tile.threads

    def swizzle(self, k: str) -> str:
        """Spreads the quads that neighbouring threads store over the banks of workgroup memory."""
        return f" ^ ({k} & 7u)" if self.k_major else ""

    def rows(self) -> Iterator[str]:
        """Declares which quads and positions this thread loads, and what is fixed for its rows."""
        x, threads, k = self.x, self.tile.threads, self.tile.k
        extent = {"a": "m", "b": "n"}[x]
        if self.k_major:
            yield f"  let {x}_k0 = lid % {k}u;"
            yield f"  let {x}_q0 = lid / {k}u;"
        else:
            yield f"  let {x}_q0 = lid % {self.quads}u;"
            yield f"  let {x}_k0 = lid / {self.quads}u;"
        for j in range(self.loads if self.k_major else 1):
            for e in range(4):
                row = self.row(f"{x}_q0 + {j * threads // k}u", e)
                yield f"  let {x}_row{j}_{e} = {x}_row(slice, min({row}, P.{extent} - 1u));"

    def fetch(self, k: str, keyword: str, tail: bool) -> Iterator[str]:
        """Loads this thread's quads of the step that starts at ``k`` into ``<x>_next<j>``."""
        x = self.x
        for j in range(self.loads):
            at = "0" if self.k_major else str(j)
            if not self.k_major or j == 0:
                position = f"{k} + {x}_k0 + {0 if self.k_major else j * self.tile.threads // self.quads}u"
                yield f"    let {x}_at{at} = {position};"
                inside = f"min({x}_at{at}, k_end - 1u)" if tail else f"{x}_at{at}"
                yield f"    let {x}_step{at} = {x}_step(slice, {inside});"
            row = j if self.k_major else 0
            quad = ", ".join(f"{x}_value({x}_row{row}_{e}, {x}_step{at})" for e in range(4))
            value = f"vec4<f32>({quad})"
            if tail:
                value = f"select(vec4<f32>(), {value}, {x}_at{at} < k_end)"
            yield f"    {keyword}{x}_next{j} = {value};"

    def store(self) -> Iterator[str]:
        x, threads, k = self.x, self.tile.threads, self.tile.k
        for j in range(self.loads):
            if self.k_major:
                quad, position = f"({x}_q0 + {j * threads // k}u)", f"{x}_k0"
            else:
                quad, position = f"{x}_q0", f"({x}_k0 + {j * threads // self.quads}u)"
            at = f"{self.stage()}{position} * {self.quads}u + ({quad}{self.swizzle(position)})"
            yield f"    {x}_tile[{at}] = {x}_next{j};"

    def stage(self) -> str:
        """Where the current step's buffer starts."""
        return f"stage * {self.quads * self.tile.k}u + " if self.tile.buffers == 2 else ""

    def read(self, kk: int, thread: str, share: int) -> Iterator[str]:
        """Reads this thread's quads at position ``kk`` of the step."""
        parts = share // 4
        for q in range(parts):
            quad = f"{thread} + {q * self.quads // parts}u"
            swizzled = f"(({quad}) ^ {kk & 7}u)" if self.k_major else quad
            yield f"      let {self.x}{q} = {self.x}_tile[{self.stage()}{kk * self.quads}u + {swizzled}];"


def block_text(
    tile: Tile, a_k_major: bool, b_k_major: bool, tail: bool, pairs: bool = False, heavy: bool = False
) -> str:
    """The ``main`` of a blocked product.

    ``tail``: the sum's length may not be a multiple of ``tile.k``. ``pairs``: sums are stored two at a time. ``heavy``:
    ``finish`` is long, or compiling is slow, and it should be there a few times only: compilers write it out wherever
    it is called. (128 x 128 sums with a GELU compile in 1.5 instead of 9 seconds on the software adapter.)
    """
    together = 2 if pairs else 1
    a, b = _Side("a", tile.m, tile, a_k_major, together), _Side("b", tile.n, tile, b_k_major, together)
    double = tile.buffers == 2
    columns = tile.n // tile.tn
    sums = [f"s{i}_{j}" for i in range(tile.tm) for j in range(tile.tn // 4)]
    lines = [
        f"var<workgroup> a_tile: array<vec4<f32>, {a.quads * tile.k * tile.buffers}>;",
        f"var<workgroup> b_tile: array<vec4<f32>, {b.quads * tile.k * tile.buffers}>;",
        f"@compute @workgroup_size({tile.threads})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
        *which_block(tile),
        f"  let k_last = k_begin + (k_end - k_begin - 1u) / {tile.k}u * {tile.k}u;",
        f"  let tx = lid % {columns}u;",
        f"  let ty = lid / {columns}u;",
        *a.rows(),
        *b.rows(),
        *(f"  var {s} = vec4<f32>();" for s in sums),
        *(f"  var {side.x}_next{j}: vec4<f32>;" for side in (a, b) for j in range(side.loads)),
        "  {",
        *a.fetch("k_begin", "", tail),
        *b.fetch("k_begin", "", tail),
        "  }",
        *(["  var stage = 0u;"] if double else []),
        f"  for (var k = k_begin; k < k_end; k += {tile.k}u) {{",
        *([] if double else ["    workgroupBarrier();"]),
        *a.store(),
        *b.store(),
        "    workgroupBarrier();",
        "    // The next step's values travel while this step's are multiplied; the last step fetches itself again.",
        f"    let ahead = min(k + {tile.k}u, k_last);",
        *a.fetch("ahead", "", tail),
        *b.fetch("ahead", "", tail),
        *_products(tile, a, b),
        *(["    stage = 1u - stage;"] if double else []),
        "  }",
        *(_finish_in_turn(tile, a, b) if heavy else _finish(tile, a, b)),
        "}",
        "",
    ]
    return "\n".join(lines)


def _products(tile: Tile, a: _Side, b: _Side) -> Iterator[str]:
    for kk in range(tile.k):
        yield "    {"
        yield from a.read(kk, "ty", tile.tm)
        yield from b.read(kk, "tx", tile.tn)
        for i in range(tile.tm):
            for j in range(tile.tn // 4):
                yield f"      s{i}_{j} += a{i // 4}.{'xyzw'[i % 4]} * b{j};"
        yield "    }"


def _finish(tile: Tile, a: _Side, b: _Side) -> Iterator[str]:
    threads_m, threads_n = tile.m // tile.tm, tile.n // tile.tn
    for i in range(tile.tm):
        m = a.row(f"ty + {i // 4 * threads_m}u", i % 4)
        for j in range(tile.tn // 4):
            quad = f"tx + {j * threads_n}u"
            for e in range(0, 4, b.together):
                n = b.row(quad, e)
                yield f"  finish(slice, split, {m}, {n}, s{i}_{j}.{'xyzw'[e : e + b.together]});"


def _finish_in_turn(tile: Tile, a: _Side, b: _Side) -> Iterator[str]:
    """:func:`_finish` as a loop over the vectors of sums."""
    threads_m, threads_n = tile.m // tile.tm, tile.n // tile.tn
    parts = tile.tn // 4
    yield f"  for (var turn = 0u; turn < {tile.tm * parts}u; turn += 1u) {{"
    yield "    var sums = s0_0;"
    yield "    switch turn {"
    for turn in range(1, tile.tm * parts):
        yield f"      case {turn}u: {{ sums = s{turn // parts}_{turn % parts}; }}"
    yield "      default: {}"
    yield "    }"
    yield f"    let row = turn / {parts}u;"
    yield f"    let away = row % 4u / {a.together}u * {a.size * a.together // 4}u + row % {a.together}u;"
    yield f"    let sum_m = m0 + {a.together}u * (ty + row / 4u * {threads_m}u) + away;"
    yield f"    let quad = tx + turn % {parts}u * {threads_n}u;"
    for e in range(0, 4, b.together):
        yield f"    finish(slice, split, sum_m, {b.row('quad', e)}, sums.{'xyzw'[e : e + b.together]});"
    yield "  }"
