"""Blocks of attention's scores, written out for a tile size: the inner loops of :mod:`.flash`.

A workgroup keeps a block of ``rows`` x ``columns`` scores in registers: each thread ``share`` rows of four columns, as
vectors ``<name>_<i>``. Two kinds of products are made of such blocks:

* :func:`scores` multiplies two operands whose lines are the block's rows and columns, along their width;
* :func:`weighted` multiplies the block, which :func:`put` brought to workgroup memory, with an operand whose lines are
  the block's columns, and adds to sums ``<name>_<i>_<j>``: of a thread's row i the four numbers of unit
  ``tx + j * across``.

Operands travel in vectors of four numbers (*units*) of a line; the next step's travel to registers while this one's
are multiplied. In workgroup memory four lines are followed by a vector that nobody uses, so that neighbouring threads,
which read every fourth line, read different banks. A body declares for operand ``x`` the functions

* ``x_line(b: u32, head: u32, line: u32) -> u32``, where a line starts, and
* ``x_four(line: u32, i: u32) -> vec4<f32>``, unit ``i`` of it, in which numbers beyond its end are zeros,

which are asked for lines and units that exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class FlashTile:
    """``share``: a multiple of 4; ``step``: numbers of a line, or lines of a weighted operand, that are in workgroup
    memory at once.
    """

    rows: int
    columns: int
    share: int
    step: int = 16

    @property
    def across(self) -> int:
        """Threads that share a row."""
        return self.columns // 4

    @property
    def threads(self) -> int:
        return self.rows // self.share * self.across

    @property
    def quads(self) -> int:
        """Fours of rows."""
        return self.rows // 4

    @property
    def own(self) -> int:
        """Fours of rows of a thread."""
        return self.share // 4

    @property
    def units(self) -> int:
        """Of a line, in a step."""
        return self.step // 4

    @property
    def block_vectors(self) -> int:
        """Of a block in workgroup memory: the columns, each as fours of rows."""
        return self.columns * self.quads + self.columns // 4

    def sums(self, units: int) -> int:
        """How many units of a line of so many a thread adds up."""
        return -(-units // self.across)

    def stage_vectors(self, most_units: int) -> int:
        """Of a step's operands, where lines that are weighted have up to ``most_units``."""
        lines = self.rows + self.columns
        return max(lines * self.units + lines // 4, self.step * self.sums(most_units) * self.across)

    def workgroup_bytes(self, most_units: int) -> int:
        """With two numbers for each row."""
        return 16 * (self.stage_vectors(most_units) + self.block_vectors) + 8 * self.rows


@dataclass(frozen=True)
class Lines:
    """Lines ``first`` and following of operand ``x``, of ``units``; there are ``count``, of head ``head``."""

    x: str
    head: str
    first: str
    count: str
    units: int


def start(tile: FlashTile, most_units: int) -> list[str]:
    """Declares workgroup memory and the begin of ``main``."""
    return [
        f"var<workgroup> stage: array<vec4<f32>, {tile.stage_vectors(most_units)}>;",
        f"var<workgroup> block: array<vec4<f32>, {tile.block_vectors}>;",
        f"@compute @workgroup_size({tile.threads})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
        f"  let tx = lid % {tile.across}u;",
        f"  let ty = lid / {tile.across}u;",
        "  let b = wid.z;",
    ]


def scores(tile: FlashTile, name: str, a: Lines, b: Lines) -> Iterator[str]:
    """Declares the block ``name`` of products of the lines of ``a``, its rows, and of ``b``, its columns."""
    units = tile.units
    operands = ((a, tile.rows, 0), (b, tile.columns, tile.rows * units + tile.quads))
    yield from (f"  var {name}_{i} = vec4<f32>();" for i in range(tile.share))
    yield "  {"
    for o, lines, _ in operands:
        for j in range(lines * units // tile.threads):
            line = f"{o.first} + lid / {units}u + {j * tile.threads // units}u"
            yield f"    let {o.x}_line{j} = {o.x}_line(b, {o.head}, min({line}, {o.count} - 1u));"
            yield f"    var {o.x}_next{j}: vec4<f32>;"

    def fetch(unit: str) -> Iterator[str]:
        for o, lines, _ in operands:
            for j in range(lines * units // tile.threads):
                at = f"{unit} + lid % {units}u"
                yield f"    {o.x}_next{j} = {_inside(o, f'{o.x}_line{j}', at, o.units % units > 0)};"

    yield from fetch("0u")
    yield f"    for (var unit = 0u; unit < {a.units}u; unit += {units}u) {{"
    yield "      workgroupBarrier();"
    for o, lines, base in operands:
        for j in range(lines * units // tile.threads):
            place = f"lid + lid / {4 * units}u + {base + j * tile.threads + j * tile.threads // (4 * units)}u"
            yield f"      stage[{place}] = {o.x}_next{j};"
    yield "      workgroupBarrier();"
    if a.units > units:
        yield f"      let ahead = unit + {units}u;"
        yield f"      if (ahead < {a.units}u) {{"
        yield from (f"    {line}" for line in fetch("ahead"))
        yield "      }"
    yield f"      let a_from = ty * {tile.share * units + tile.own}u;"
    yield f"      let b_from = tx * {4 * units + 1}u + {operands[1][2]}u;"
    for unit in range(units):
        for i in range(tile.share):
            yield f"      let a{unit}_{i} = stage[a_from + {i * units + i // 4 + unit}u];"
        for e in range(4):
            yield f"      let b{unit}_{e} = stage[b_from + {e * units + unit}u];"
        for c in "xyzw":
            columns = ", ".join(f"b{unit}_{e}.{c}" for e in range(4))
            yield f"      let b{unit}{c} = vec4<f32>({columns});"
            yield from (f"      {name}_{i} += a{unit}_{i}.{c} * b{unit}{c};" for i in range(tile.share))
    yield "    }"
    yield "  }"


def _inside(o: Lines, line: str, at: str, tail: bool) -> str:
    """Unit ``at`` of a line, or zeros beyond its end, which may come within a step if ``tail``."""
    if not tail:
        return f"{o.x}_four({line}, {at})"
    return f"select(vec4<f32>(), {o.x}_four({line}, min({at}, {o.units - 1}u)), {at} < {o.units}u)"


def put(tile: FlashTile, name: str) -> Iterator[str]:
    """Brings block ``name`` to workgroup memory, where nobody may still read the one before."""
    for e, c in enumerate("xyzw"):
        for q in range(tile.own):
            rows = ", ".join(f"{name}_{4 * q + i}.{c}" for i in range(4))
            place = f"tx * {4 * tile.quads + 1}u + ty * {tile.own}u + {e * tile.quads + q}u"
            yield f"  block[{place}] = vec4<f32>({rows});"


def cleared(tile: FlashTile, name: str, units: int) -> Iterator[str]:
    """Declares the sums ``name`` over lines of ``units``."""
    yield from (f"  var {name}_{i}_{j} = vec4<f32>();" for i in range(tile.share) for j in range(tile.sums(units)))


def weighted(tile: FlashTile, name: str, o: Lines) -> Iterator[str]:
    """Adds to the sums ``name`` the products of the block in workgroup memory and of the lines of ``o``."""
    sums = tile.sums(o.units)
    line_units = sums * tile.across
    loads = tile.step * line_units // tile.threads
    yield "  {"
    for j in range(loads):
        yield f"    let {o.x}_down{j} = (lid + {j * tile.threads}u) / {line_units}u;"
        yield f"    let {o.x}_unit{j} = (lid + {j * tile.threads}u) % {line_units}u;"
        yield f"    var {o.x}_next{j}: vec4<f32>;"

    def fetch(at: str) -> Iterator[str]:
        for j in range(loads):
            line = f"{o.first} + {at} + {o.x}_down{j}"
            unit, exists = f"{o.x}_unit{j}", f"{line} < {o.count}"
            if line_units > o.units:
                unit, exists = f"min({unit}, {o.units - 1}u)", f"{exists} && {unit} < {o.units}u"
            value = f"{o.x}_four({o.x}_line(b, {o.head}, min({line}, {o.count} - 1u)), {unit})"
            yield f"    {o.x}_next{j} = select(vec4<f32>(), {value}, {exists});"

    yield from fetch("0u")
    yield f"    for (var at = 0u; at < {tile.columns}u; at += {tile.step}u) {{"
    yield "      workgroupBarrier();"
    yield from (f"      stage[lid + {j * tile.threads}u] = {o.x}_next{j};" for j in range(loads))
    yield "      workgroupBarrier();"
    yield f"      let ahead = at + {tile.step}u;"
    yield f"      if (ahead < {tile.columns}u) {{"
    yield from (f"    {line}" for line in fetch("ahead"))
    yield "      }"
    yield f"      let from_block = at * {tile.quads}u + at / 4u + ty * {tile.own}u;"
    for k in range(tile.step):
        for q in range(tile.own):
            yield f"      let w{k}_{q} = block[from_block + {k * tile.quads + k // 4 + q}u];"
        for j in range(sums):
            yield f"      let v{k}_{j} = stage[tx + {k * line_units + j * tile.across}u];"
            for i in range(tile.share):
                yield f"      {name}_{i}_{j} += w{k}_{i // 4}.{'xyzw'[i % 4]} * v{k}_{j};"
    yield "    }"
    yield "  }"


def stored(tile: FlashTile, name: str, result: str, units: int, row: str, value: str) -> Iterator[str]:
    """Calls ``<result>_put(b, h, line, unit, v)`` for each of the sums ``name``: ``row`` is a thread's first line,
    ``value`` what becomes of ``{sum}`` of row ``{i}``. Lines and units may not exist.
    """
    for i in range(tile.share):
        for j in range(tile.sums(units)):
            v = value.format(sum=f"{name}_{i}_{j}", i=i)
            yield f"  {result}_put(b, h, {row} + {i}u, tx + {j * tile.across}u, {v});"
