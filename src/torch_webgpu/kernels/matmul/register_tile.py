"""Blocked products whose sums each thread keeps in registers, written out for a tile size.

Each thread keeps its ``tm`` x ``tn`` sums in named vec4 variables: private arrays would live in memory. The next step's
values travel to registers while this step's are multiplied. The operands declare what loads them
(:meth:`.operand.Operand.load`), the numbers of a run as ``vec4<f32>``. The body declares

* ``fn finish(slice: u32, split: u32, m: u32, n: u32, sums: V)``: stores sum (m, n) or, where V is a vector of 2 or 4,
  also its neighbours along n; they may lie outside

and parameters ``m``, ``n``, ``k``, and those of :func:`.tile.block_params`. Rows and positions it is asked for always
exist: what lies outside of the sums is read from the last row, since nobody stores it, and what lies beyond the end of
the sum is replaced by zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from .operand import Side
from .tile import READ_AHEAD, Tile, which_block

LINE_RUNS = 8
"""Runs of 16 bytes that workgroup memory delivers at once: a line of its banks."""


SPARE_SUMS = 8192
"""Sums of a block up to which threads have registers to spare."""
FEW_SUMS = 4096


def in_runs(tile: Tile, a: Side, b: Side, software: bool) -> tuple[Side, Side]:
    """The operands as they are loaded best: in runs, where they lie so and that is faster.

    On an H200 large tiles lose by it (4096 cubed, 128x128: 44 TFLOPS, in runs 37 to 39), others gain 2 to 15 % of
    operands that lie across the sum, and lose up to 10 of those along it, but that the smallest win by one. Software
    adapters always gain.
    """

    def gains(side: Side, other: Side) -> bool:
        sums = tile.m * tile.n
        return software or (sums <= FEW_SUMS and not other.k_major) or (sums <= SPARE_SUMS and not side.k_major)

    return replace(a, runs=a.runs and gains(a, b)), replace(b, runs=b.runs and gains(b, a))


def most_together(tile: Tile, b: Side) -> int:
    """How many neighbours along n a thread had better store at once: the columns of a quad. Where threads gather
    neighbouring columns, those of a quad had better be far apart.
    """
    return 4 if b.runs or (b.k_major and tile.m * tile.n <= SPARE_SUMS) else 2


@dataclass(frozen=True)
class _Operand(ABC):
    """How the threads share the loading of one operand, and which of its values each multiplies.

    ``size``: rows of the block; ``share``: those that meet in one thread's sums, in quads. In a quad are ``together``
    neighbours (1, 2 or 4), the others a half or a quarter of the block away. ``tail``: the sum may end within a step.
    """

    side: Side
    size: int
    share: int
    tile: Tile
    together: int
    tail: bool

    served: ClassVar[int]
    """Positions of the sum for which a thread reads at once from workgroup memory."""

    @property
    def x(self) -> str:
        return self.side.x

    @property
    def extent(self) -> str:
        return {"a": "m", "b": "n"}[self.x]

    @property
    def thread(self) -> str:
        """The number of a thread's first quad."""
        return {"a": "ty", "b": "tx"}[self.x]

    @property
    def quads(self) -> int:
        return self.size // 4

    @property
    def loads(self) -> int:
        """Quads of one step that each thread loads."""
        return self.quads * self.tile.k // self.tile.threads

    def quad(self, part: int) -> str:
        """Which of the block's quads is number ``part`` of a thread's."""
        return f"{self.thread} + {part * self.size // self.share}u"

    def row(self, quad: str, e: int) -> str:
        """Row ``e`` of a quad."""
        away = e // self.together * (self.size * self.together // 4) + e % self.together
        return f"{self.extent}0 + {self.together}u * ({quad}) + {away}u"

    def away(self, e: str) -> str:
        """How far row ``e`` of a quad, which is known at run time, is from its first."""
        return f"{e} / {self.together}u * {self.size * self.together // 4}u + {e} % {self.together}u"

    def stage(self) -> str:
        """Where the current step's buffer starts."""
        return f"stage * {self.quads * self.tile.k}u + " if self.tile.buffers == 2 else ""

    def declared(self) -> str:
        return f"var<workgroup> {self.x}_tile: array<vec4<f32>, {self.quads * self.tile.k * self.tile.buffers}>;"

    def inside(self, at: str, length: int = 1) -> str:
        """The position ``at`` or, beyond the sum's end, the last from which ``length`` can be loaded."""
        return f"min({at}, k_end - {length}u)" if self.tail else at

    def next(self, j: int, value: str, at: str) -> str:
        """Keeps this thread's vector ``j`` of the next step."""
        return f"    {self.x}_next{j} = {f'select(vec4<f32>(), {value}, {at} < k_end)' if self.tail else value};"

    @abstractmethod
    def begin(self) -> Iterator[str]:
        """Declares what this thread loads, and what is fixed for its rows."""

    @abstractmethod
    def fetch(self, k: str) -> Iterator[str]:
        """Loads this thread's vectors of the step that starts at ``k`` into ``<x>_next<j>``."""

    @abstractmethod
    def store(self) -> Iterator[str]:
        """Brings them to workgroup memory."""

    @abstractmethod
    def reads(self, part: int, kk: int) -> Iterator[str]:
        """Declares ``<x><kk>_<part>``: a thread's quad ``part`` at position ``kk`` of the step."""


class _Quads(_Operand):
    """Lies in workgroup memory by positions of the sum, as quads of rows.

    A thread loads a quad at one position: as a run, if rows are neighbours in memory, or number by number. Then
    neighbouring threads load neighbouring positions or neighbouring rows, whichever are neighbours in memory.
    """

    served = 1

    def begin(self) -> Iterator[str]:
        x, k = self.x, self.tile.k
        if self.side.k_major:
            yield f"  let {x}_k0 = lid % {k}u;"
            yield f"  let {x}_q0 = lid / {k}u;"
        else:
            yield f"  let {x}_q0 = lid % {self.quads}u;"
            yield f"  let {x}_k0 = lid / {self.quads}u;"
        length = 4 if self.side.runs else 1
        for j in range(self.loads if self.side.k_major else 1):
            for e in range(0, 4, length):
                row = self.row(f"{x}_q0 + {j * self.tile.threads // k}u", e)
                yield f"  let {x}_row{j}_{e} = {x}_row(slice, min({row}, P.{self.extent} - {length}u));"

    def fetch(self, k: str) -> Iterator[str]:
        x, major = self.x, self.side.k_major
        for j in range(self.loads):
            row, step = (j, 0) if major else (0, j)
            if step == j:
                yield f"    let {x}_at{j} = {k} + {x}_k0 + {j * self.tile.threads // self.quads}u;"
                yield f"    let {x}_step{j} = {x}_step(slice, {self.inside(f'{x}_at{j}')});"
            if self.side.runs:
                value = f"{x}_run({x}_row{row}_0, {x}_step{step})"
            else:
                numbers = ", ".join(f"{x}_value({x}_row{row}_{e}, {x}_step{step})" for e in range(4))
                value = f"vec4<f32>({numbers})"
            yield self.next(j, value, f"{x}_at{step}")

    def swizzle(self, k: str) -> str:
        """Spreads the quads that neighbouring threads store over the banks of workgroup memory."""
        return f" ^ ({k} & 7u)" if self.side.k_major else ""

    def store(self) -> Iterator[str]:
        x, threads, k = self.x, self.tile.threads, self.tile.k
        for j in range(self.loads):
            if self.side.k_major:
                quad, position = f"({x}_q0 + {j * threads // k}u)", f"{x}_k0"
            else:
                quad, position = f"{x}_q0", f"({x}_k0 + {j * threads // self.quads}u)"
            at = f"{self.stage()}{position} * {self.quads}u + ({quad}{self.swizzle(position)})"
            yield f"    {x}_tile[{at}] = {x}_next{j};"

    def reads(self, part: int, kk: int) -> Iterator[str]:
        quad = self.quad(part)
        swizzled = f"(({quad}) ^ {kk & 7}u)" if self.side.k_major else quad
        yield f"    let {self.x}{kk}_{part} = {self.x}_tile[{self.stage()}{kk * self.quads}u + {swizzled}];"


class _Lines(_Operand):
    """Lies in workgroup memory as it does in memory: runs along the sum, line by line.

    Row ``e`` of a quad is line ``e * quads + quad``, so that neighbouring threads read neighbouring lines whatever is
    together. Their runs are at the same place of each, which is turned by line so that they lie in different banks.
    Quads are made up in registers. (Storing the numbers of a run where quads have them would be a race: a thread that
    stores a component of a vector may store all of it.)
    """

    served = 4

    @property
    def runs(self) -> int:
        """Of a line."""
        return self.tile.k // 4

    def begin(self) -> Iterator[str]:
        x, down = self.x, self.tile.threads // self.runs
        yield f"  let {x}_k0 = lid % {self.runs}u * 4u;"
        yield f"  let {x}_to = lid ^ (lid / {LINE_RUNS}u % {self.runs}u);"
        for j in range(self.loads):
            line = f"(lid / {self.runs}u + {j * down}u)"
            row = f"{self.together}u * ({line} % {self.quads}u) + {self.away(f'({line} / {self.quads}u)')}"
            inside = f"min({self.extent}0 + {line if self.together == 1 else row}, P.{self.extent} - 1u)"
            yield f"  let {x}_row{j} = {x}_row(slice, {inside});"
        first = f"({self.thread} * {self.runs}u)"
        yield f"  let {x}_from = {first} ^ ({first} / {LINE_RUNS}u % {self.runs}u);"

    def fetch(self, k: str) -> Iterator[str]:
        x = self.x
        yield f"    let {x}_at = {k} + {x}_k0;"
        yield f"    let {x}_step0 = {x}_step(slice, {self.inside(f'{x}_at', 4)});"
        for j in range(self.loads):
            yield self.next(j, f"{x}_run({x}_row{j}, {x}_step0)", f"{x}_at")

    def store(self) -> Iterator[str]:
        for j in range(self.loads):
            yield f"    {self.x}_tile[{self.stage()}{self.x}_to + {j * self.tile.threads}u] = {self.x}_next{j};"

    def reads(self, part: int, kk: int) -> Iterator[str]:
        x, four = self.x, kk // 4
        lines, lane = [f"{x}{four}_{part}_{e}" for e in range(4)], "xyzw"[kk % 4]
        for e, line in enumerate(lines):
            first = (e * self.quads + part * self.size // self.share) * self.runs
            yield f"    let {line} = {x}_tile[{self.stage()}{first}u + ({x}_from ^ {four}u)];"
        yield f"    let {x}{kk}_{part} = vec4<f32>({', '.join(f'{line}.{lane}' for line in lines)});"


def _operand_of(side: Side, tile: Tile, together: int, tail: bool) -> _Operand:
    size, share = {"a": (tile.m, tile.tm), "b": (tile.n, tile.tn)}[side.x]
    along = side.runs and side.k_major
    return (_Lines if along else _Quads)(side, size, share, tile, 4 if side.runs and not along else together, tail)


def block_text(
    tile: Tile,
    a_side: Side,
    b_side: Side,
    tail: bool,
    together: int = 1,
    heavy: bool = False,
    ahead: bool = False,
) -> str:
    """The ``main`` of a blocked product.

    ``tail``: the sum's length may not be a multiple of ``tile.k``. ``together``: how many sums ``finish`` takes, up to
    :func:`most_together`. ``ahead``: there is ``given`` (see :mod:`.epilogue`), which is read ``READ_AHEAD`` vectors
    ahead. ``heavy``: ``finish`` is long, or compiling is slow, and it should be there a few times only:
    compilers write it out wherever it is called. (128 x 128 sums with a GELU compile in 1.5 instead of 9 seconds on the
    software adapter.)
    """
    a, b = _operand_of(a_side, tile, 1, tail), _operand_of(b_side, tile, together, tail)
    double = tile.buffers == 2
    columns = tile.n // tile.tn
    sums = [f"s{i}_{j}" for i in range(tile.tm) for j in range(tile.tn // 4)]
    lines = [
        a.declared(),
        b.declared(),
        f"@compute @workgroup_size({tile.threads})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,",
        "        @builtin(local_invocation_index) lid: u32) {",
        *which_block(tile),
        f"  let k_last = k_begin + (k_end - k_begin - 1u) / {tile.k}u * {tile.k}u;",
        f"  let tx = lid % {columns}u;",
        f"  let ty = lid / {columns}u;",
        *a.begin(),
        *b.begin(),
        *(f"  var {s} = vec4<f32>();" for s in sums),
        *(f"  var {side.x}_next{j}: vec4<f32>;" for side in (a, b) for j in range(side.loads)),
        "  {",
        *a.fetch("k_begin"),
        *b.fetch("k_begin"),
        "  }",
        *(["  var stage = 0u;"] if double else []),
        f"  for (var k = k_begin; k < k_end; k += {tile.k}u) {{",
        *([] if double else ["    workgroupBarrier();"]),
        *a.store(),
        *b.store(),
        "    workgroupBarrier();",
        "    // The next step's values travel while this step's are multiplied; the last step fetches itself again.",
        f"    let ahead = min(k + {tile.k}u, k_last);",
        *a.fetch("ahead"),
        *b.fetch("ahead"),
        *_products(tile, a, b),
        *(["    stage = 1u - stage;"] if double else []),
        "  }",
        *(_finish_in_turn if heavy else _finish)(tile, a, b, together, READ_AHEAD if ahead else 0),
        "}",
        "",
    ]
    return "\n".join(lines)


def _products(tile: Tile, a: _Operand, b: _Operand) -> Iterator[str]:
    """The step's products, each operand read when it is first needed: one quad of b, at the positions that its lines
    serve, or all quads at one position.
    """
    parts = range(tile.tn // 4)
    known: set[str] = set()
    for first, groups in product(range(0, tile.k, b.served), [[part] for part in parts] if b.served > 1 else [parts]):
        positions = range(first, first + b.served)
        reads = [read for kk, part in product(positions, range(tile.tm // 4)) for read in a.reads(part, kk)]
        reads += [read for kk, part in product(positions, groups) for read in b.reads(part, kk)]
        yield from (read for read in dict.fromkeys(reads) if read not in known)
        known.update(reads)
        for kk, i, j in product(positions, range(tile.tm), groups):
            yield f"    s{i}_{j} += a{kk}_{i // 4}.{'xyzw'[i % 4]} * b{kk}_{j};"


def _finish(tile: Tile, a: _Operand, b: _Operand, together: int, ahead: int) -> Iterator[str]:
    found = []
    for i, j, e in product(range(tile.tm), range(tile.tn // 4), range(0, 4, together)):
        m, n = a.row(a.quad(i // 4), i % 4), b.row(b.quad(j), e)
        found.append((f"{m}, {n}", f"s{i}_{j}{_some(e, together)}"))
    for first in range(0, len(found), ahead or 1):
        batch = list(enumerate(found[first : first + (ahead or 1)], first))
        if ahead:
            yield from (f"  let given{n} = given(slice, {place});" for n, (place, _) in batch)
            yield from (f"  finish_given(slice, split, {place}, {sums}, given{n});" for n, (place, sums) in batch)
        else:
            yield from (f"  finish(slice, split, {place}, {sums});" for _, (place, sums) in batch)


def _some(first: int, count: int) -> str:
    """Accesses ``count`` numbers of a vector of four."""
    return "" if count == 4 else f".{'xyzw'[first : first + count]}"


def _finish_in_turn(tile: Tile, a: _Operand, b: _Operand, together: int, ahead: int) -> Iterator[str]:
    """:func:`_finish` as a loop over the vectors of sums."""
    parts = tile.tn // 4
    turns = tile.tm * parts
    ahead = min(ahead, turns)

    def place(turn: str, e: int = 0) -> str:
        row, quad = f"({turn} / {parts}u)", f"(tx + {turn} % {parts}u * {tile.n // tile.tn}u)"
        first = f"m0 + {a.together}u * (ty + {row} / 4u * {tile.m // tile.tm}u)"
        return f"{first} + {a.away(f'({row} % 4u)')}, {b.row(quad, e)}"

    for n in range(ahead):
        yield f"  var given{n} = given(slice, {place(f'{n}u')});"
    yield f"  for (var turn = 0u; turn < {turns}u; turn += 1u) {{"
    yield "    var sums = s0_0;"
    yield "    switch turn {"
    for turn in range(1, turns):
        yield f"      case {turn}u: {{ sums = s{turn // parts}_{turn % parts}; }}"
    yield "      default: {}"
    yield "    }"
    if ahead:
        yield "    let read = given0;"
        yield from (f"    given{n} = given{n + 1};" for n in range(ahead - 1))
        if ahead < turns:
            further = f"(turn + {ahead}u)"
            yield f"    if ({further} < {turns}u) {{ given{ahead - 1} = given(slice, {place(further)}); }}"
        yield f"    finish_given(slice, split, {place('turn')}, sums, read);"
    else:
        for e in range(0, 4, together):
            yield f"    finish(slice, split, {place('turn', e)}, sums{_some(e, together)});"
    yield "  }"
