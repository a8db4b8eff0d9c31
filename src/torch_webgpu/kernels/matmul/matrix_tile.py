"""Blocked products on subgroup matrices ("tensor cores"): the counterpart of ``register_tile.py`` for operands of 8 and
16 bits.

A workgroup computes a block of ``m`` x ``n`` sums; its subgroups share it as ``down`` x ``across`` parts, each a grid
of fragments in named variables. Step by step it brings ``m`` x ``k`` values of operand a and ``k`` x ``n`` of operand b
into workgroup memory, as they lie in memory: *runs* of 16 bytes along whichever dimension is contiguous. The next
step's runs travel to registers while this step's are multiplied.

The body declares the same as for ``register_tile.py``, but that a run is 16 bytes of what matrices multiply, as
``vec4<u32>``.

What is per thread in the loop is an addition and a multiplication for each run; everything else is fixed before it, or
the same for the workgroup. There are no bounds checks but at a sum's end, and none where steps divide it (``tail``).

WGSL: https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md, as Dawn has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.target import MatrixConfig, Target

from .operand import RUN_BYTES, Scale, Side, Sides, run_of
from .scaled import scale_lines, scaled_run
from .tile import MIN_SPLIT_K, READ_AHEAD, Blocking, cost_ns, which_block


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
        run = run_of(config.operand)
        lines = sum(max(size * (self.k // run + 1), self.k * (size // run + 1)) for size in (self.m, self.n))
        return max(RUN_BYTES * lines, self.down * self.across * config.m * (self.n // self.across + 4) * 4)

    def suits(self, config: MatrixConfig) -> bool:
        """Whether fragments divide it, and its threads have equal shares of what is loaded and of what is stored."""
        run, threads, lanes = run_of(config.operand), self.threads(config), config.subgroup_size
        if self.m % (self.down * config.m) or self.n % (self.across * config.n) or self.k % config.k:
            return False
        whole = all(threads % (line // run) == 0 for line in (self.m, self.n, self.k))
        shared = all(size * self.k // run % threads == 0 for size in (self.m, self.n))
        return whole and shared and config.m * (self.n // self.across) % (4 * lanes) == 0


WIDE = MatrixTile(128, 256, 32, 2, 4)
SQUARE = MatrixTile(128, 128, 32, 2, 2)
HALF = MatrixTile(64, 128, 32, 2, 2)
QUARTER = MatrixTile(64, 64, 32, 2, 2)
LOW = MatrixTile(32, 64, 64, 1, 4)
TILES = (WIDE, SQUARE, HALF, QUARTER, LOW)
# Multiply-adds a nanosecond of a compute unit, by how many workgroups of the tile it has (see tile.py), fitted to
# measurements on an H200.
RATES = {
    WIDE: (985, 0.13, 800, 1),
    SQUARE: (884, 0.2, 816, 2),
    HALF: (664, 0.6, 578, 1),
    QUARTER: (591, 1.07, 528, 1),
    LOW: (377, 0.62, 370, 1),
}


def config_for(target: Target, dtype: str) -> MatrixConfig | None:
    """The largest product of fragments of ``dtype`` whose sums are wide enough and whose sizes are whole runs; None
    where the adapter has none.
    """
    found = [
        config
        for config in target.matrices
        if (config.operand, config.result) == (dtype, BY_NAME[dtype].matrix_sum)
        and not any(size % run_of(dtype) for size in (config.m, config.n, config.k))
    ]
    return max(found, key=lambda config: config.m * config.n * config.k, default=None)


def tiles_for(target: Target, config: MatrixConfig) -> list[MatrixTile]:
    """Those that the adapter holds and can multiply."""
    return [tile for tile in TILES if tile.workgroup_bytes(config) <= target.workgroup_bytes and tile.suits(config)]


def blocking(slices: int, m: int, n: int, k: int, tiles: Sequence[MatrixTile]) -> Blocking[MatrixTile]:
    """The fastest of ``tiles`` and of the numbers of partial sums that are powers of two."""
    counts = [1 << s for s in range(max(1, min(8, (k // (4 * MIN_SPLIT_K)).bit_length())))]
    options = [(tile, splits) for tile in tiles for splits in counts]
    tile, splits = min(options, key=lambda option: cost_ns(RATES[option[0]], option[0], option[1], slices, m, n, k))
    chunk = -(-k // (splits * tile.k)) * tile.k
    return Blocking(tile, -(-k // chunk), chunk)


@dataclass(frozen=True)
class MatrixKernel:
    """What the ``main`` of a blocked product of operands of ``config.operand`` depends on.

    ``sides``, ``scales``: of a and b. ``tail``: the sum's length may not be a multiple of ``tile.k``. ``together``: how
    many sums ``finish`` takes. ``ahead``: there is ``given`` (see :mod:`.epilogue`), which is read ``READ_AHEAD`` turns
    ahead. ``halves``: of how many a number is the sum, whose fragments alternate (:mod:`.halves`). ``sized``: a kernel
    may ask for the size of its subgroups.
    """

    tile: MatrixTile
    config: MatrixConfig
    sides: Sides
    scales: tuple[Scale | None, Scale | None]
    tail: bool
    together: int
    ahead: bool
    halves: int
    sized: bool

    @property
    def rows(self) -> int:
        """Of fragments, in a subgroup's part."""
        return self.tile.m // self.tile.down // self.config.m

    @property
    def columns(self) -> int:
        return self.tile.n // self.tile.across // self.config.n

    @property
    def loaders(self) -> tuple[_Loader, _Loader]:
        a = _Loader(self, self.sides[0], self.scales[0], self.tile.m, 0)
        return a, _Loader(self, self.sides[1], self.scales[1], self.tile.n, a.end)

    def text(self) -> str:
        """The ``main``."""
        tile, config, rows, columns = self.tile, self.config, self.rows, self.columns
        a, b = self.loaders
        out = _Out(self)
        sized = f" @subgroup_size({config.subgroup_size})" if self.sized else ""
        lines = [
            f"alias Left = subgroup_matrix_left<{config.operand}, {config.k}, {config.m}>;",
            f"alias Right = subgroup_matrix_right<{config.operand}, {config.n}, {config.k}>;",
            f"alias Sums = subgroup_matrix_result<{config.result}, {config.n}, {config.m}>;",
            f"var<workgroup> tiles: array<vec4<u32>, {max(b.end, out.end)}>;",
            f"@compute @workgroup_size({tile.threads(config)}){sized}",
            "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
            "        @builtin(local_invocation_index) lid: u32, @builtin(subgroup_id) part_id: u32) {",
            *which_block(tile),
            *scale_lines(self.scales),
            f"  let part_m = part_id / {tile.across}u * {rows * config.m}u;",
            f"  let part_n = part_id % {tile.across}u * {columns * config.n}u;",
            *a.begin(),
            *b.begin(),
            *(f"  var s{i}_{j}: Sums;" for i in range(rows) for j in range(columns)),
            "  {",
            *a.fetch("k_begin"),
            *b.fetch("k_begin"),
            "  }",
            f"  for (var k = k_begin; k < k_end; k += {tile.k}u) {{",
            "    workgroupBarrier();",
            *a.store(),
            *b.store(),
            "    workgroupBarrier();",
            f"    let ahead = k + {tile.k}u;",
            "    if (ahead < k_end) {",
            *(f"  {line}" for line in (*a.fetch("ahead"), *b.fetch("ahead"))),
            "    }",
            *self._products(a, b),
            "  }",
            *out.text(),
            "}",
            "",
        ]
        return "\n".join(lines)

    def _products(self, a: _Loader, b: _Loader) -> Iterator[str]:
        """Multiplies a step. Of two halves that make a number, whose fragments are neighbours along the sum, the
        product of the lower ones is left out.
        """
        config, rows = self.config, range(self.rows)
        for group in range(0, self.tile.k, self.halves * config.k):
            places = [group + half * config.k for half in range(self.halves)]
            for kk in places:
                yield from (f"    let a{kk}_{i} = {a.fragment('part_m', i * config.m, kk)};" for i in rows)
            for j in range(self.columns):
                for half, kk in enumerate(places):
                    yield f"    let b{kk}_{j} = {b.fragment('part_n', j * config.n, kk)};"
                    for other, i in product(places[: self.halves - half], rows):
                        yield f"    s{i}_{j} = subgroupMatrixMultiplyAccumulate(a{other}_{i}, b{kk}_{j}, s{i}_{j});"


class _Loader:
    """The text that brings a side's part of a step to ``tiles``, from ``start`` on: lines of runs, and one to pad."""

    def __init__(self, kernel: MatrixKernel, side: Side, scale: Scale | None, size: int, start: int) -> None:
        config, tile = kernel.config, kernel.tile
        self.scaled = scale is not None and scale.on_load
        self.side, self.x, self.extent = side, side.x, "m" if side.x == "a" else "n"
        self.start, self.tail = start, kernel.tail
        self.operand, self.run = config.operand, run_of(config.operand)
        threads = tile.threads(config)
        outer, inner = (size, tile.k) if side.k_major else (tile.k, size)
        self.line = inner // self.run
        self.pitch = self.line + 1
        self.end = start + outer * self.pitch
        self.down = threads // self.line
        """Lines from one of a thread's runs to the next."""
        self.loads = outer // self.down

    def begin(self) -> Iterator[str]:
        """Declares which runs this thread loads, and what is fixed for their rows."""
        x, last = self.x, f"P.{self.extent} - 1u"
        yield f"  let {x}_line = lid / {self.line}u;"
        yield f"  let {x}_first = lid % {self.line}u * {self.run}u;"
        if self.side.k_major:
            rows = [f"{x}_line + {j * self.down}u" for j in range(self.loads)]
        elif self.side.runs:
            # The last run that has anything of the operand in it: rows that are padded to whole runs have one more.
            rows, last = [f"{x}_first"], f"(P.{self.extent} - 1u) / {self.run}u * {self.run}u"
        else:
            rows = [f"{x}_first + {e}u" for e in range(self.run)]
        for j, row in enumerate(rows):
            yield f"  let {x}_row{j} = {x}_row(slice, min({self.extent}0 + {row}, {last}));"
        yield from (f"  var {x}_next{j}: vec4<u32>;" for j in range(self.loads))

    def fetch(self, k: str) -> Iterator[str]:
        """Loads this thread's runs of the step that starts at ``k`` into ``<x>_next<j>``."""
        x = self.x
        if not self.side.k_major:
            yield from self._steps([f"{k} + {x}_line + {j * self.down}u" for j in range(self.loads)])
        elif self.side.runs:
            yield from self._steps([f"{k} + {x}_first"], self.run)
        else:
            yield from self._steps([f"{k} + {x}_first + {e}u" for e in range(self.run)])
        for j in range(self.loads):
            yield f"    {x}_next{j} = {self._loaded(j)};"

    def _steps(self, positions: list[str], length: int = 1) -> Iterator[str]:
        """Declares positions of the sum, each the first of ``length``, and whether they exist."""
        x = self.x
        for s, position in enumerate(positions):
            if self.tail:
                yield f"    let {x}_in{s} = {position} < k_end;"
                position = f"min({position}, k_end - {length}u)"
            yield f"    let {x}_at{s} = {x}_step(slice, {position});"

    def _loaded(self, j: int) -> str:
        """Run ``j`` of this thread."""
        x, major = self.x, self.side.k_major
        if self.side.runs:
            row, step = (j, 0) if major else (0, j)
            return self._inside(step, f"{x}_run({x}_row{row}, {x}_at{step})", "vec4<u32>()")
        places = [(j, e) if major else (e, j) for e in range(self.run)]
        zero = "0.0" if self.operand == "f16" else "0"
        scale = f" * {x}_scale" if self.scaled else ""
        values = [self._inside(step, f"{x}_value({x}_row{row}, {x}_at{step}){scale}", zero) for row, step in places]
        each, pack = (2, "pack2x16float(vec2<f32>") if self.operand == "f16" else (4, "pack4xI8(vec4<i32>")
        words = [f"{pack}({', '.join(values[e : e + each])}))" for e in range(0, self.run, each)]
        return f"vec4<u32>({', '.join(words)})"

    def _inside(self, step: int, value: str, zero: str) -> str:
        return f"select({zero}, {value}, {self.x}_in{step})" if self.tail else value

    def store(self) -> Iterator[str]:
        x = self.x
        for j in range(self.loads):
            line = f"({x}_line + {j * self.down}u) * {self.pitch}u"
            # Here, not where it is loaded: what needs a load's result waits for it.
            value = scaled_run(x, f"{x}_next{j}") if self.scaled and self.side.runs else f"{x}_next{j}"
            yield f"    tiles[{self.start}u + {line} + {x}_first / {self.run}u] = {value};"

    def fragment(self, at: str, along: int, kk: int) -> str:
        """Loads the fragment whose first row (or column) is ``along`` + ``at``, from position ``kk`` of the step."""
        order = "row_major" if self.side.k_major == (self.x == "a") else "col_major"
        if self.side.k_major:
            place = f"({at} + {along}u) * {self.pitch}u + {self.start + kk // self.run}u"
        else:
            place = f"({at} + {along}u) / {self.run}u + {self.start + kk * self.pitch}u"
        kind = "Left" if self.x == "a" else "Right"
        return f"subgroupMatrixLoad<{kind}, {order}>(&tiles, {place}, {self.pitch}u)"


class _Out:
    """The text that stores the sums. They go through workgroup memory, where a thread can name those it stores: of each
    subgroup one row of fragments at a time, and a vector of four neighbours a thread, padded against bank conflicts.
    """

    def __init__(self, kernel: MatrixKernel) -> None:
        tile, config = kernel.tile, kernel.config
        self.back = "" if kernel.scales == (None, None) else " * back.x * back.y"
        self.config, self.rows, self.columns, self.together = config, kernel.rows, kernel.columns, kernel.together
        self.line = self.columns * config.n // 4
        self.pitch = self.line + 1
        self.end = tile.down * tile.across * config.m * self.pitch
        self.quads = config.m * self.line
        """Of a subgroup's row of fragments."""
        self.ahead = min(READ_AHEAD, self.quads // config.subgroup_size) if kernel.ahead else 0

    def text(self) -> Iterator[str]:
        config, lanes = self.config, self.config.subgroup_size
        mine = f"part_id * {config.m * self.pitch}u"
        value = "f32" if config.result == "f32" else "i32"
        # A loop, so that a long epilogue is there but once; which row is the same for all threads.
        yield f"  for (var row = 0u; row < {self.rows}u; row += 1u) {{"
        for n in range(self.ahead):
            yield f"    var given{n} = {self._given(f'{n * lanes}u')};"
        yield "    workgroupBarrier();"
        yield "    switch row {"
        for i in range(self.rows):
            yield f"      {f'case {i}u' if i + 1 < self.rows else 'default'}: {{"
            for j in range(self.columns):
                place = f"&tiles, {mine} + {j * config.n // 4}u, s{i}_{j}, {self.pitch}u"
                yield f"        subgroupMatrixStore<row_major>({place});"
            yield "      }"
        yield "    }"
        yield "    workgroupBarrier();"
        yield f"    for (var turn = 0u; turn < {self.quads}u; turn += {lanes}u) {{"
        yield f"      let quad = turn + lid % {lanes}u;"
        yield f"      let line = quad / {self.line}u;"
        yield f"      let column = quad % {self.line}u;"
        yield f"      let four = bitcast<vec4<{value}>>(tiles[{mine} + line * {self.pitch}u + column]){self.back};"
        yield f"      let sum_m = m0 + part_m + row * {config.m}u + line;"
        yield "      let sum_n = n0 + part_n + 4u * column;"
        if self.ahead:
            yield "      let read = given0;"
            yield from (f"      given{n} = given{n + 1};" for n in range(self.ahead - 1))
            further = f"turn + {self.ahead * lanes}u"
            if self.ahead * lanes < self.quads:
                yield f"      if ({further} < {self.quads}u) {{ given{self.ahead - 1} = {self._given(further)}; }}"
            yield "      finish_given(slice, split, sum_m, sum_n, four, read);"
        else:
            for e in range(0, 4, self.together):
                sums = "four" if self.together == 4 else f"four.{'xyzw'[e : e + self.together]}"
                yield f"      finish(slice, split, sum_m, sum_n + {e}u, {sums});"
        yield "    }"
        yield "  }"

    def _given(self, turn: str) -> str:
        """What the epilogue reads for this thread's sums of a turn."""
        quad = f"({turn} + lid % {self.config.subgroup_size}u)"
        m, n = f"m0 + part_m + row * {self.config.m}u + {quad} / {self.line}u", f"{quad} % {self.line}u"
        return f"given(slice, {m}, n0 + part_n + 4u * ({n}))"
