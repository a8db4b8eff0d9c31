"""Blocks of attention's scores on subgroup matrices: the counterpart of :mod:`.flash_tile` for float16.

A workgroup computes ``rows`` x ``columns`` scores; its subgroups share them, and the sums over lines, as ``down`` x
``across`` parts, each a grid of fragments in named variables. Operands lie in workgroup memory as lines of runs of 16
bytes, one of them to pad, and zeros up to whole fragments. Fragments have no elements that a program could name: blocks
go through workgroup memory as float32, where each thread takes its share of one row, and come back as float16.

WGSL: https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md, as Dawn has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_webgpu.target import MatrixConfig

RUN = 8
"""Numbers of float16 in a run."""


@dataclass(frozen=True)
class FragmentTile:
    """Sizes of a block, and how many parts it falls into."""

    rows: int
    columns: int
    down: int
    across: int

    @property
    def parts(self) -> int:
        return self.down * self.across

    def threads(self, config: MatrixConfig) -> int:
        return self.parts * config.subgroup_size

    def suits(self, config: MatrixConfig) -> bool:
        """Whether fragments divide it, and its threads have equal shares of a row, in whole runs."""
        threads = self.threads(config)
        if self.rows % (self.down * config.m) or self.columns % (self.across * config.n) or self.columns % config.k:
            return False
        return threads % self.rows == 0 and self.columns % (RUN * (threads // self.rows)) == 0


@dataclass(frozen=True)
class Region:
    """Lines in workgroup memory, from run ``start`` on, ``pitch`` runs from one to the next."""

    start: int
    lines: int
    pitch: int

    @property
    def end(self) -> int:
        return self.start + self.lines * self.pitch


class Block:
    """What a kernel over blocks of one size is written with: where things lie, and how they are multiplied."""

    def __init__(self, tile: FragmentTile, config: MatrixConfig) -> None:
        self.tile, self.config = tile, config
        self.threads = tile.threads(config)
        self.down, self.across = tile.rows // tile.down // config.m, tile.columns // tile.across // config.n
        """Fragments of a part."""
        self.share = tile.columns * tile.rows // self.threads
        """Columns of a thread."""
        self.end = 0
        self.brought: Callable[[str, str], str] = lambda x, run: run
        """What becomes of a run of an operand on its way to workgroup memory."""

    def region(self, lines: int, runs: int, least: int = 0) -> Region:
        """Memory for lines of so many runs."""
        found = Region(self.end, lines, runs + 1)
        self.end = max(found.end, found.start + least)
        return found

    def padded(self, width: int) -> int:
        """Numbers of a line as it lies in workgroup memory."""
        whole = max(self.config.k, self.tile.across * self.config.n)
        return -(-width // whole) * whole

    def lines_of(self, lines: int, width: int) -> Region:
        return self.region(lines, self.padded(width) // RUN)

    def scores(self) -> Region:
        """Float32; what :meth:`rescaled` and :meth:`stored` pass through it, too."""
        return self.region(self.tile.rows, self.tile.columns // 4, self.tile.parts * self.passed_runs)

    def weights(self) -> Region:
        return self.region(self.tile.rows, self.tile.columns // RUN)

    @property
    def passed_runs(self) -> int:
        return self.config.m * (self.config.n // 4 + 1)

    def widths(self, width: int) -> int:
        """Fragments along a line that a part adds up."""
        return self.padded(width) // self.tile.across // self.config.n

    def start(self, subgroup_sizes: bool) -> Iterator[str]:
        c, threads = self.config, self.threads
        sized = f" @subgroup_size({c.subgroup_size})" if subgroup_sizes else ""
        yield f"alias Left = subgroup_matrix_left<{c.operand}, {c.k}, {c.m}>;"
        yield f"alias Right = subgroup_matrix_right<{c.operand}, {c.n}, {c.k}>;"
        yield f"alias Sums = subgroup_matrix_result<{c.result}, {c.n}, {c.m}>;"
        yield f"var<workgroup> tiles: array<vec4<u32>, {self.end}>;"
        yield f"@compute @workgroup_size({threads}){sized}"
        yield "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32,"
        yield "        @builtin(subgroup_id) part_id: u32) {"
        yield f"  let part_row = part_id / {self.tile.across}u * {self.down * c.m}u;"
        yield f"  let part_column = part_id % {self.tile.across}u * {self.across * c.n}u;"
        yield f"  let row = lid % {self.tile.rows}u;"
        yield f"  let column = lid / {self.tile.rows}u * {self.share}u;"
        yield "  let b = wid.z;"

    # Operands

    def resident(self, x: str, head: str, first: str, to: Region) -> Iterator[str]:
        """Brings lines of ``x`` from ``first`` on to workgroup memory."""
        runs = to.pitch - 1
        yield f"  for (var i = lid; i < {to.lines * runs}u; i += {self.threads}u) {{"
        yield f"    let run = {x}_run(b, {head}, {first} + i / {runs}u, i % {runs}u);"
        yield f"    tiles[{to.start}u + i / {runs}u * {to.pitch}u + i % {runs}u] = {self.brought(x, 'run')};"
        yield "  }"

    def _turns(self, to: Region) -> Iterator[tuple[int, str, bool]]:
        total = to.lines * (to.pitch - 1)
        for j in range(-(-total // self.threads)):
            yield j, f"(lid + {j * self.threads}u)", (j + 1) * self.threads > total

    def travelling(self, x: str, to: Region) -> Iterator[str]:
        yield from (f"  var {x}_next{j}: vec4<u32>;" for j, _, _ in self._turns(to))

    def fetch(self, x: str, head: str, first: str, to: Region) -> Iterator[str]:
        """Loads lines from ``first`` on, of those that exist."""
        runs = to.pitch - 1
        for j, i, _ in self._turns(to):
            yield f"    {x}_next{j} = {x}_run(b, {head}, {first} + {i} / {runs}u, {i} % {runs}u);"

    def arrive(self, x: str, to: Region) -> Iterator[str]:
        """Stores what was fetched."""
        runs = to.pitch - 1
        for j, i, partly in self._turns(to):
            place, run = f"{to.start}u + {i} / {runs}u * {to.pitch}u + {i} % {runs}u", self.brought(x, f"{x}_next{j}")
            exists = f"if ({i} < {to.lines * runs}u) " if partly else ""
            yield f"    {exists}{{ tiles[{place}] = {run}; }}"

    # Products

    def block_of(self, name: str, a: Region, b: Region, width: int) -> Iterator[str]:
        """Declares fragments ``<name>_<i>_<j>`` of products of lines, ``a``'s as rows and ``b``'s as columns."""
        c = self.config
        yield from (f"  var {name}_{i}_{j} = Sums();" for i in range(self.down) for j in range(self.across))
        yield "  {"
        for kk in range(0, -(-width // c.k) * c.k, c.k):
            yield from self._left(a, kk)
            for j in range(self.across):
                place = f"{b.start + kk // RUN}u + (part_column + {j * c.n}u) * {b.pitch}u"
                yield f"    let b{kk}_{j} = subgroupMatrixLoad<Right, col_major>(&tiles, {place}, {b.pitch}u);"
                yield from self._add(name, f"{kk}", j)
        yield "  }"

    def _left(self, a: Region, kk: int) -> Iterator[str]:
        for i in range(self.down):
            place = f"{a.start + kk // RUN}u + (part_row + {i * self.config.m}u) * {a.pitch}u"
            yield f"    let a{kk}_{i} = subgroupMatrixLoad<Left, row_major>(&tiles, {place}, {a.pitch}u);"

    def _add(self, name: str, kk: str, j: int) -> Iterator[str]:
        for i in range(self.down):
            s = f"{name}_{i}_{j}"
            yield f"    {s} = subgroupMatrixMultiplyAccumulate(a{kk}_{i}, b{kk}_{j}, {s});"

    def cleared(self, name: str, width: int) -> Iterator[str]:
        yield from (f"  var {name}_{i}_{j}: Sums;" for i in range(self.down) for j in range(self.widths(width)))

    def weighted(self, name: str, weights: Region, o: Region, width: int) -> Iterator[str]:
        """Adds to the sums ``name`` the products of weights and of lines of ``o``."""
        c, widths = self.config, self.widths(width)
        yield "  {"
        yield f"    let part_width = part_id % {self.tile.across}u * {widths * c.n // RUN}u;"
        for kk in range(0, self.tile.columns, c.k):
            yield from self._left(weights, kk)
            for j in range(widths):
                place = f"{o.start + kk * o.pitch + j * c.n // RUN}u + part_width"
                yield f"    let b{kk}_{j} = subgroupMatrixLoad<Right, row_major>(&tiles, {place}, {o.pitch}u);"
                yield from self._add(name, f"{kk}", j)
        yield "  }"

    # Blocks on their way through workgroup memory

    def put(self, name: str, to: Region) -> Iterator[str]:
        c = self.config
        for i in range(self.down):
            for j in range(self.across):
                place = f"{to.start + j * c.n // 4}u + (part_row + {i * c.m}u) * {to.pitch}u + part_column / 4u"
                yield f"  subgroupMatrixStore<row_major>(&tiles, {place}, {name}_{i}_{j}, {to.pitch}u);"

    def read(self, name: str, of: Region) -> Iterator[str]:
        """Declares a thread's share of its row, as vectors ``<name>_<i>``."""
        for i in range(self.share // 4):
            place = f"{of.start + i}u + row * {of.pitch}u + column / 4u"
            yield f"  var {name}_{i} = bitcast<vec4<f32>>(tiles[{place}]);"

    def write(self, name: str, to: Region) -> Iterator[str]:
        """Stores a thread's share as float16."""
        for i in range(self.share // RUN):
            vectors = [f"{name}_{2 * i + e}.{two}" for e in range(2) for two in ("xy", "zw")]
            words = ", ".join(f"pack2x16float({v})" for v in vectors)
            yield f"  tiles[{to.start + i}u + row * {to.pitch}u + column / {RUN}u] = vec4<u32>({words});"

    def _each(self, name: str, width: int, through: Region, body: list[str], back: bool) -> Iterator[str]:
        """Passes the sums ``name`` through workgroup memory, a fragment of each part at a time: ``body`` sees four
        neighbours as ``four``, their ``sum_row`` and their ``unit`` of the line, and what they lie in as ``place``.
        """
        c = self.config
        fours, widths = c.n // 4, self.widths(width)
        quads, line = c.m * fours, fours + 1
        mine = f"{through.start}u + part_id * {self.passed_runs}u"
        for i in range(self.down):
            for j in range(widths):
                yield f"    subgroupMatrixStore<row_major>(&tiles, {mine}, {name}_{i}_{j}, {line}u);"
                yield "    workgroupBarrier();"
                yield f"    for (var quad = lid; quad < {quads * self.tile.parts}u; quad += {self.threads}u) {{"
                yield f"      let part = quad / {quads}u;"
                yield f"      let down = quad % {quads}u / {fours}u;"
                yield f"      let along = quad % {fours}u;"
                yield f"      let place = {through.start}u + part * {self.passed_runs}u + down * {line}u + along;"
                yield f"      let sum_row = part / {self.tile.across}u * {self.down * c.m}u + {i * c.m}u + down;"
                yield f"      let unit = part % {self.tile.across}u * {widths * fours}u + {j * fours}u + along;"
                yield "      let four = bitcast<vec4<f32>>(tiles[place]);"
                yield from (f"      {text}" for text in body)
                yield "    }"
                yield "    workgroupBarrier();"
                if back:
                    yield f"    {name}_{i}_{j} = subgroupMatrixLoad<Sums, row_major>(&tiles, {mine}, {line}u);"

    def rescaled(self, name: str, width: int, through: Region, factor: str) -> Iterator[str]:
        """Multiplies the sums' rows."""
        return self._each(name, width, through, [f"tiles[place] = bitcast<vec4<u32>>(four * {factor});"], True)

    def stored(self, name: str, width: int, through: Region, text: str) -> Iterator[str]:
        return self._each(name, width, through, [text], False)
