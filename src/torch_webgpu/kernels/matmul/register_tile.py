"""Blocked products whose sums each thread keeps in registers: what ``register_tile.wgsl.jinja`` asks of a tile size.

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

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, NamedTuple

from torch_webgpu.kernels.template import render

from .operand import Side
from .tile import READ_AHEAD, Tile, lanes_of

LINE_RUNS = 8
"""Runs of 16 bytes that workgroup memory delivers at once: a line of its banks."""


SPARE_SUMS = 8192
"""Sums of a block up to which threads have registers to spare."""
FEW_SUMS = 4096


def in_runs(tile: Tile, a: Side, b: Side) -> tuple[Side, Side]:
    """The operands as they are loaded best: in runs, where they lie so and that is faster.

    On an H200 large tiles lose by it (4096 cubed, 128x128: 44 TFLOPS, in runs 37 to 39), others gain 2 to 15 % of
    operands that lie across the sum, and lose up to 10 of those along it, but that the smallest win by one. Those whose
    sums are in parts gain always (32x64 on an H100: 5 to 10 %).
    """
    if tile.parts > 1:
        return a, b

    def gains(side: Side, other: Side) -> bool:
        sums = tile.m * tile.n
        return (sums <= FEW_SUMS and not other.k_major) or (sums <= SPARE_SUMS and not side.k_major)

    return replace(a, runs=a.runs and gains(a, b)), replace(b, runs=b.runs and gains(b, a))


def most_together(tile: Tile, b: Side) -> int:
    """How many neighbours along n a thread had better store at once: the columns of a quad. Where threads gather
    neighbouring columns, those of a quad had better be far apart.
    """
    return 4 if b.runs or (b.k_major and tile.m * tile.n <= SPARE_SUMS) else 2


@dataclass(frozen=True)
class BlockOperand:
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

    in_lines: ClassVar[bool]
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

    @property
    def groups(self) -> list[list[int]]:
        """A thread's quads, as they are read: all at once, or one by one."""
        parts = list(range(self.share // 4))
        return [[part] for part in parts] if self.served > 1 else [parts]

    @property
    def vectors(self) -> int:
        """Of workgroup memory."""
        return self.quads * self.tile.k * self.tile.buffers

    @property
    def stage(self) -> str:
        """Where the current step's buffer starts, to be added to."""
        return f"stage * {self.quads * self.tile.k}u + " if self.tile.buffers == 2 else ""

    @property
    def first(self) -> str:
        """Where the quads of this thread's part of the step start, to be added to."""
        return f"part_of_sum * {self.quads * self.tile.k_of_part}u + " if self.tile.parts > 1 else ""

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

    def inside(self, at: str, length: int = 1) -> str:
        """The position ``at`` or, beyond the sum's end, the last from which ``length`` can be loaded."""
        return f"min({at}, k_end - {length}u)" if self.tail else at


class _Quads(BlockOperand):
    """Lies in workgroup memory by positions of the sum, as quads of rows.

    A thread loads a quad at one position: as a run, if rows are neighbours in memory, or number by number. Then
    neighbouring threads load neighbouring positions or neighbouring rows, whichever are neighbours in memory.
    """

    in_lines = False
    served = 1

    @property
    def together_loaded(self) -> int:
        """Rows that are loaded at once."""
        return 4 if self.side.runs else 1

    def quad_row(self, j: int, e: int) -> str:
        """Row ``e`` of a thread's load ``j``."""
        return self.row(f"{self.x}_q0 + {j * self.tile.threads // self.tile.k}u", e)

    def quad_loaded(self, row: int, step: int) -> str:
        """Four rows at one position."""
        x = self.x
        if self.side.runs:
            return f"{x}_run({x}_row{row}_0, {x}_step{step})"
        return f"vec4<f32>({', '.join(f'{x}_value({x}_row{row}_{e}, {x}_step{step})' for e in range(4))})"

    def stored_at(self, j: int) -> str:
        """Spread over the banks of workgroup memory, where neighbouring threads store at neighbouring positions."""
        x, threads, k = self.x, self.tile.threads, self.tile.k
        if self.side.k_major:
            return f"{x}_k0 * {self.quads}u + (({x}_q0 + {j * threads // k}u) ^ ({x}_k0 & 7u))"
        return f"({x}_k0 + {j * threads // self.quads}u) * {self.quads}u + ({x}_q0)"

    def quad_at(self, part: int, kk: int) -> str:
        """Among those of position ``kk``."""
        return f"(({self.quad(part)}) ^ {kk & 7}u)" if self.side.k_major else self.quad(part)


class _Lines(BlockOperand):
    """Lies in workgroup memory as it does in memory: runs along the sum, line by line.

    Row ``e`` of a quad is line ``e * quads + quad``, so that neighbouring threads read neighbouring lines whatever is
    together. Their runs are at the same place of each, which is turned by line so that they lie in different banks.
    Quads are made up in registers. (Storing the numbers of a run where quads have them would be a race: a thread that
    stores a component of a vector may store all of it.)
    """

    in_lines = True
    served = 4

    @property
    def runs(self) -> int:
        """Of a line."""
        return self.tile.k // 4

    def turned(self, run: str) -> str:
        """The place of a run that is number ``run`` without turning."""
        return f"{run} ^ ({run} / {LINE_RUNS}u % {self.runs}u)"

    def line_row(self, j: int) -> str:
        """The row of a thread's load ``j``."""
        line = f"(lid / {self.runs}u + {j * (self.tile.threads // self.runs)}u)"
        if self.together == 1:
            return f"{self.extent}0 + {line}"
        first = f"{self.together}u * ({line} % {self.quads}u)"
        return f"{self.extent}0 + {first} + {self.away(f'({line} / {self.quads}u)')}"

    @property
    def first_of_part(self) -> str:
        """What turns the place of a line's first run into that of the first of this thread's part."""
        return f" ^ (part_of_sum * {self.tile.k_of_part // 4}u)" if self.tile.parts > 1 else ""

    def first_run(self, part: int, e: int) -> int:
        """Of row ``e`` of a thread's quad ``part``, from the thread's first one on."""
        return (e * self.quads + part * self.size // self.share) * self.runs


def _operand_of(side: Side, tile: Tile, together: int, tail: bool) -> _Quads | _Lines:
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
    ahead. ``heavy``: ``finish`` is long, and it should be there a few times only: compilers write it out wherever it is
    called.
    """
    a, b = _operand_of(a_side, tile, 1, tail), _operand_of(b_side, tile, together, tail)
    turns = Turns(tile, a, b)
    text = render(
        "matmul/register_tile",
        tile=tile,
        a=a,
        b=b,
        parts=tile.tn // 4,
        together=together,
        lanes_of=lanes_of,
        ahead=min(READ_AHEAD, turns.count if heavy else READ_AHEAD) if ahead else 0,
        in_turn=heavy,
        turns=turns,
        partials=_partials(tile, a, b),
        sums=[] if heavy else _sums(tile, a, b, together),
    )
    return f"{text}\n"


def _partials(tile: Tile, a: BlockOperand, b: BlockOperand) -> list[tuple[str, str]]:
    """Where the vectors of a thread's sums travel to the thread that adds up the parts, and what they are called."""
    if tile.parts == 1:
        return []
    places = []
    for n, (i, j) in enumerate(product(range(tile.tm), range(tile.tn // 4))):
        first = n * tile.threads_of_part
        x, first = ("a", first) if first < a.vectors else ("b", first - a.vectors)
        places.append((f"{x}_tile[{first}u + place]", f"s{i}_{j}"))
    return places


class _Sum(NamedTuple):
    """Sums that are stored at once: the ``n``-th, their place, and the expression that they are."""

    n: int
    at: str
    value: str


def _sums(tile: Tile, a: BlockOperand, b: BlockOperand, together: int) -> list[_Sum]:
    """All of a thread's."""
    every = product(range(tile.tm), range(tile.tn // 4), range(0, 4, together))
    return [
        _Sum(n, f"{a.row(a.quad(i // 4), i % 4)}, {b.row(b.quad(j), e)}", f"s{i}_{j}{lanes_of(e, together)}")
        for n, (i, j, e) in enumerate(every)
    ]


@dataclass(frozen=True)
class Turns:
    """A loop over the vectors of a thread's sums."""

    tile: Tile
    a: BlockOperand
    b: BlockOperand

    @property
    def count(self) -> int:
        return self.tile.tm * (self.tile.tn // 4)

    def at(self, turn: str, e: int = 0) -> str:
        """The place of the vector of a turn that is known at run time, from its number ``e`` on."""
        tile, parts = self.tile, self.tile.tn // 4
        row, quad = f"({turn} / {parts}u)", f"(tx + {turn} % {parts}u * {tile.n // tile.tn}u)"
        first = f"m0 + {self.a.together}u * (ty + {row} / 4u * {tile.m // tile.tm}u)"
        return f"{first} + {self.a.away(f'({row} % 4u)')}, {self.b.row(quad, e)}"
