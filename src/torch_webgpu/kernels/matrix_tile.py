"""Blocked products on subgroup matrices ("tensor cores"): the counterpart of ``tile.py`` for 16-bit operands.

A workgroup computes a block of ``m`` x ``n`` sums; its subgroups share it as ``down`` x ``across`` parts, each a grid
of fragments in named variables. Step by step it brings ``m`` x ``k`` values of operand a and ``k`` x ``n`` of operand b
into workgroup memory, as they lie in memory: octets of 16-bit numbers along whichever dimension is contiguous. The next
step's octets travel to registers while this step's are multiplied. Sums are f32.

The body says where operands come from as for ``tile.py`` (``a_row``, ``a_step``, ``a_value``, ``finish``). For an
operand that lies in octets it declares instead

* ``fn a_start(slice: u32, m: u32, k: u32) -> u32``: the number of an element (for b: ``k`` and ``n``), a multiple of 8
* ``fn a_stride() -> u32``: from there to the next ``k``
* ``fn a_octet(e: u32) -> vec4<u32>``: the eight numbers from element ``e`` on

WGSL: https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md, as Dawn has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_webgpu.wgsl.link import HostCaps
from torch_webgpu.wgsl.matrices import MatrixConfig

from .tile import MIN_SPLIT_K, PARTIAL_NS, SPLIT_NS, UNITS, Blocking, blocks

OCTET = 8
"""Values that travel together: 16 bytes."""


@dataclass(frozen=True)
class MatrixTile:
    """Sizes of a block (``m``, ``n``), of a step (``k``), and into how many subgroups' parts the block falls."""

    m: int
    n: int
    k: int
    down: int
    across: int

    def threads(self, config: MatrixConfig) -> int:
        return self.down * self.across * config.subgroup_size

    def workgroup_bytes(self, config: MatrixConfig) -> int:
        """The most that the operands take, in either order, or the sums on their way out."""
        operands = sum(max(size * (self.k + OCTET), self.k * (size + OCTET)) * 2 for size in (self.m, self.n))
        return max(operands, self.down * config.m * self.n * 4)


WIDE = MatrixTile(128, 256, 32, 2, 4)
SQUARE = MatrixTile(128, 128, 32, 2, 2)
HALF = MatrixTile(64, 128, 32, 2, 2)
QUARTER = MatrixTile(64, 64, 32, 2, 2)
LOW = MatrixTile(32, 64, 64, 1, 4)
TILES = (WIDE, SQUARE, HALF, QUARTER, LOW)
# Multiply-adds a nanosecond of a compute unit (NVIDIA H200), by how many workgroups of the tile it has.
RATES = {
    WIDE: (1150, 0.2, 1150),
    SQUARE: (900, 0.4, 1120),
    HALF: (700, 0.6, 900),
    QUARTER: (550, 1.0, 800),
    LOW: (330, 1.5, 500),
}


def config_for(caps: HostCaps, dtype: str) -> MatrixConfig | None:
    """The largest product of fragments of ``dtype`` with f32 sums; None where the adapter has none."""
    found = [config for config in caps.matrices if (config.operand, config.result) == (dtype, "f32")]
    return max(found, key=lambda config: config.m * config.n * config.k, default=None)


def tiles_for(caps: HostCaps, config: MatrixConfig) -> list[MatrixTile]:
    """Those that the fragments divide and the adapter holds."""
    return [
        tile
        for tile in TILES
        if tile.workgroup_bytes(config) <= caps.workgroup_bytes
        and not (tile.m % (tile.down * config.m) or tile.n % (tile.across * config.n) or tile.k % config.k)
    ]


def cost_ns(tile: MatrixTile, splits: int, slices: int, m: int, n: int, k: int) -> float:
    """The time of a product on a large GPU: that of its busiest unit, and of adding up partial sums."""
    rate, idle, full = RATES[tile]
    groups = -(-slices * splits * blocks(tile, m, n) // UNITS)
    busy = min(full, rate * groups / (groups + idle))
    time = groups * tile.m * tile.n * (k / splits + 4 * MIN_SPLIT_K) / busy
    return time if splits == 1 else time + SPLIT_NS + slices * (splits + 1) * m * n * PARTIAL_NS


def blocking(slices: int, m: int, n: int, k: int, tiles: Sequence[MatrixTile]) -> Blocking[MatrixTile]:
    """The fastest of ``tiles`` and of the numbers of partial sums that are powers of two."""
    counts = [1 << s for s in range(max(1, min(8, (k // (4 * MIN_SPLIT_K)).bit_length())))]
    options = [(tile, splits) for tile in tiles for splits in counts]
    tile, splits = min(options, key=lambda option: cost_ns(option[0], option[1], slices, m, n, k))
    chunk = -(-k // (splits * tile.k)) * tile.k
    return Blocking(tile, -(-k // chunk), chunk)


@dataclass(frozen=True)
class Side:
    """How one operand travels. ``x``: "a" or "b"; ``k_major``: it is contiguous along the sum; ``octets``: it lies in
    octets, which are loaded as they are; otherwise each is gathered from eight values.
    """

    x: str
    k_major: bool
    octets: bool


class _Loader:
    """The text that brings a side's part of a step to ``<x>_tile``: lines of ``inner`` values, a pad of one octet."""

    def __init__(self, side: Side, size: int, tile: MatrixTile, threads: int) -> None:
        self.side, self.x, self.extent, self.threads = side, side.x, "m" if side.x == "a" else "n", threads
        self.outer, self.inner = (size, tile.k) if side.k_major else (tile.k, size)
        self.line = self.inner // OCTET
        self.pitch = self.line + 1
        self.loads = -(-self.outer * self.line // threads)
        self.exact = self.outer * self.line % threads == 0
        self.octets = self.outer * self.pitch

    def place(self, j: int) -> tuple[str, str]:
        """The line and the octet in it of this thread's load ``j``."""
        if self.threads % self.line == 0:
            return f"({self.x}_line + {j * self.threads // self.line}u)", f"{self.x}_column"
        at = f"(lid + {j * self.threads}u)"
        return f"{at} / {self.line}u", f"{at} % {self.line}u"

    def begin(self) -> Iterator[str]:
        """Declares where this thread loads, and what is fixed for its rows."""
        x = self.x
        if self.threads % self.line == 0:
            yield f"  let {x}_line = lid / {self.line}u;"
            yield f"  let {x}_column = lid % {self.line}u;"
        for j in range(self.loads):
            line, column = self.place(j)
            row, k = (line, f"{OCTET}u * {column}") if self.side.k_major else (f"{OCTET}u * {column}", line)
            yield f"  let {x}_r{j} = {self.extent}0 + {row};"
            yield f"  let {x}_k{j} = {k};"
            if self.side.octets:
                arguments = f"{x}_r{j}, {x}_k{j}" if x == "a" else f"{x}_k{j}, {x}_r{j}"
                yield f"  let {x}_e{j} = {x}_start(slice, {arguments});"
            else:
                for e in range(1 if self.side.k_major else OCTET):
                    yield f"  let {x}_row{j}_{e} = {x}_row(slice, min({x}_r{j} + {e}u, P.{self.extent} - 1u));"
            yield f"  var {x}_next{j}: vec4<u32>;"

    def fetch(self, k: str) -> Iterator[str]:
        """Loads this thread's octets of the step that starts at ``k`` into ``<x>_next<j>``."""
        x = self.x
        for j in range(self.loads):
            inside = [f"{x}_r{j} < P.{self.extent}", f"{k} + {x}_k{j} < k_end"]
            if not self.exact:
                inside.append(f"{self.place(j)[0]} < {self.outer}u")
            yield f"    {x}_next{j} = vec4<u32>();"
            yield f"    if ({' && '.join(inside)}) {{"
            if self.side.octets:
                yield f"      {x}_next{j} = {x}_octet({x}_e{j} + {k} * {x}_stride());"
            else:
                yield from self._gather(j, k)
            yield "    }"

    def _gather(self, j: int, k: str) -> Iterator[str]:
        x = self.x
        if self.side.k_major:
            values = [
                f"select(0.0, {x}_value({x}_row{j}_0, {x}_step(slice, min({k} + {x}_k{j} + {e}u, k_end - 1u))), "
                f"{k} + {x}_k{j} + {e}u < k_end)"
                for e in range(OCTET)
            ]
        else:
            yield f"      let {x}_at = {x}_step(slice, {k} + {x}_k{j});"
            values = [f"{x}_value({x}_row{j}_{e}, {x}_at)" for e in range(OCTET)]
        words = [f"pack2x16float(vec2<f32>({one}, {two}))" for one, two in zip(values[::2], values[1::2], strict=True)]
        for c, word in zip("xyzw", words, strict=True):
            yield f"      {x}_next{j}.{c} = {word};"

    def store(self, start: int) -> Iterator[str]:
        for j in range(self.loads):
            line, column = self.place(j)
            text = f"tiles[{start}u + {line} * {self.pitch}u + {column}] = {self.x}_next{j};"
            yield f"    {text}" if self.exact else f"    if ({line} < {self.outer}u) {{ {text} }}"

    def fragment(self, start: int, at: str, along: int, kk: int, size: int) -> str:
        """Loads the fragment whose first row (or column) is ``along`` + ``at``, from position ``kk`` of the step."""
        order = "row_major" if self.side.k_major == (self.x == "a") else "col_major"
        if self.side.k_major:
            place = f"({at} + {along}u) * {self.pitch}u + {kk // OCTET}u"
        else:
            place = f"{kk * self.pitch}u + ({at} + {along}u) / {OCTET}u"
        kind = "Left" if self.x == "a" else "Right"
        return f"subgroupMatrixLoad<{kind}, {order}>(&tiles, {start}u + {place}, {self.pitch}u)"


def matrix_block_text(
    tile: MatrixTile, config: MatrixConfig, a_side: Side, b_side: Side, caps: HostCaps, pairs: bool = False
) -> str:
    """The ``main`` of a blocked product of f16 operands. ``pairs``: sums are stored two at a time (see tile.py)."""
    threads = tile.threads(config)
    a, b = _Loader(a_side, tile.m, tile, threads), _Loader(b_side, tile.n, tile, threads)
    rows, columns = tile.m // tile.down // config.m, tile.n // tile.across // config.n
    width = columns * config.n
    grid = [(i, j) for i in range(rows) for j in range(columns)]
    staged = tile.down * tile.across * config.m * width  # f32 sums of one row of fragments of every subgroup
    octets = max(a.octets + b.octets, staged // 4)
    lanes = config.subgroup_size
    together = 2 if pairs else 1
    sized = f" @subgroup_size({lanes})" if caps.subgroup_sizes else ""
    lines = [
        f"alias Left = subgroup_matrix_left<f16, {config.k}, {config.m}>;",
        f"alias Right = subgroup_matrix_right<f16, {config.n}, {config.k}>;",
        f"alias Sums = subgroup_matrix_result<f32, {config.n}, {config.m}>;",
        f"var<workgroup> tiles: array<vec4<u32>, {octets}>;",
        f"@compute @workgroup_size({threads}){sized}",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32, @builtin(subgroup_id) part_id: u32) {",
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
        f"  let k_last = k_begin + (k_end - k_begin - 1u) / {tile.k}u * {tile.k}u;",
        f"  let part_m = part_id / {tile.across}u * {rows * config.m}u;",
        f"  let part_n = part_id % {tile.across}u * {width}u;",
        *a.begin(),
        *b.begin(),
        *(f"  var s{i}_{j}: Sums;" for i, j in grid),
        *a.fetch("k_begin"),
        *b.fetch("k_begin"),
        f"  for (var k = k_begin; k < k_end; k += {tile.k}u) {{",
        "    workgroupBarrier();",
        *a.store(0),
        *b.store(a.octets),
        "    workgroupBarrier();",
        f"    let ahead = min(k + {tile.k}u, k_last);",
        *a.fetch("ahead"),
        *b.fetch("ahead"),
    ]
    for kk in range(0, tile.k, config.k):
        lines += [f"    let a{kk}_{i} = {a.fragment(0, 'part_m', i * config.m, kk, config.m)};" for i in range(rows)]
        for j in range(columns):
            lines.append(f"    let b{kk}_{j} = {b.fragment(a.octets, 'part_n', j * config.n, kk, config.n)};")
            lines += [
                f"    s{i}_{j} = subgroupMatrixMultiplyAccumulate(a{kk}_{i}, b{kk}_{j}, s{i}_{j});" for i in range(rows)
            ]
    lines.append("  }")
    # A row of fragments at a time, the sums go through workgroup memory, where a thread can name the ones it stores.
    mine = f"part_id * {config.m * width // 4}u"
    for i in range(rows):
        lines.append("  workgroupBarrier();")
        lines += [
            f"  subgroupMatrixStore<row_major>(&tiles, {mine} + {j * config.n // 4}u, s{i}_{j}, {width // 4}u);"
            for j in range(columns)
        ]
        each = config.m * width // lanes // together
        lines += [
            "  workgroupBarrier();",
            f"  for (var turn = 0u; turn < {each}u; turn += 1u) {{",
            f"    let at = {together}u * (turn * {lanes}u + lid % {lanes}u);",
            f"    let four = bitcast<vec4<f32>>(tiles[{mine} + at / 4u]);",
            f"    let sum_m = m0 + part_m + {i * config.m}u + at / {width}u;",
            f"    let sum_n = n0 + part_n + at % {width}u;",
            "    finish(slice, split, sum_m, sum_n, select(four.xy, four.zw, (at & 2u) != 0u));"
            if pairs
            else "    finish(slice, split, sum_m, sum_n, four[at % 4u]);",
            "  }",
        ]
    return "\n".join([*lines, "}", ""])
