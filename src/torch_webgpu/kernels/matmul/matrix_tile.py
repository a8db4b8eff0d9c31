"""Blocked products on subgroup matrices ("tensor cores"): the counterpart of ``register_tile.py`` for operands of 8 and
16 bits.

A workgroup computes a block of ``m`` x ``n`` sums; its subgroups share it as ``down`` x ``across`` parts, each a grid
of fragments in named variables. Step by step it brings values of both operands into workgroup memory, as they lie in
memory: *runs* of 16 bytes along whichever dimension is contiguous.

A step is two parts, each with a slot in workgroup memory. A part is as long as a fragment, or ``depth`` times as long:
the whole way to memory is waited for once a step, and the weights of models are far away, so the more of them travel at
a time the better. On an H200 (512×896×896, µs): 15 in steps of 128, 18 of 64, 25 of 32. Barriers separate storing from
multiplying. The widest tile has three slots instead, and does both at once (software pipelining): while one part is
multiplied, the next part's fragments travel to registers, the next step's runs are stored, and those of the step after
that are asked for. On an H100 (4096×4096×4096): 426 instead of 501.

A load that is looked at before it is stored, or that a compiler moves to where it is stored, costs the whole way to
memory each step. So what lies beyond the end of a sum becomes zero as it is stored, and loads are under a condition,
which keeps them in their place.

The body declares the same as for ``register_tile.py``, but that a run is 16 bytes of what matrices multiply, as
``vec4<u32>``.

What is per thread in the loop is an addition and a multiplication for each run; everything else is fixed before it, or
the same for the workgroup. There are no bounds checks but at a sum's end, and none where steps divide it (``tail``).

WGSL: https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md, as Dawn has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.kernels.template import render
from torch_webgpu.target import MatrixConfig, Target

from .operand import RUN_BYTES, Scale, Side, Sides, run_of
from .scaled import scale_lines, scaled_run
from .tile import MIN_SPLIT_K, MOST_SPLITS, READ_AHEAD, Blocking, lanes_of, product_ns

LEAST_PART = 16
"""Positions of a sum, in a part of a step: fewer would have as many barriers for half of the products."""

OUT_PADDING = 2
"""Vectors of four after a line of sums in workgroup memory: four lines of eight words then are in different banks."""


@dataclass(frozen=True)
class MatrixTile:
    """Sizes of a block (``m``, ``n``), into how many subgroups' parts it falls, how many slots it has, and how many
    times as long as it has to be a step is.
    """

    m: int
    n: int
    down: int
    across: int
    slots: int = 2
    depth: int = 1

    def threads(self, config: MatrixConfig) -> int:
        return self.down * self.across * config.subgroup_size

    def part(self, config: MatrixConfig) -> int:
        """Positions of a sum that a part of a step has: as many as a fragment, or several short ones, or more."""
        return self.depth * max(config.k, LEAST_PART)

    def step(self, config: MatrixConfig) -> int:
        """Positions of a step: two parts."""
        return 2 * self.part(config)

    def workgroup_bytes(self, config: MatrixConfig) -> int:
        """The most that the operands take, in either order, or the sums on their way out; beside exponents of lines."""
        run = run_of(config.operand)
        along, across = _pitch(self.slots * self.part(config) // run), self.slots * self.part(config)
        lines = sum(max(size * along, across * _pitch(size // run)) for size in (self.m, self.n))
        sums = self.down * self.across * config.m * (self.n // self.across + 4 * OUT_PADDING)
        return max(RUN_BYTES * lines, 4 * sums) + 4 * (self.m + self.n)

    def suits(self, config: MatrixConfig, sides: Sides) -> bool:
        """Whether fragments divide it, and its threads have equal shares of what is loaded and of what is stored."""
        run, step = run_of(config.operand), self.step(config)
        threads, lanes = self.threads(config), config.subgroup_size
        if self.m % (self.down * config.m) or self.n % (self.across * config.n):
            return False
        lines = [step if side.k_major else size for side, size in zip(sides, (self.m, self.n))]
        whole = all(threads % (line // run) == 0 for line in lines)
        shared = all(size * step // run % threads == 0 for size in (self.m, self.n))
        return whole and shared and config.m * (self.n // self.across) % (4 * lanes) == 0


def _pitch(line: int) -> int:
    """Runs from one line of ``line`` runs to the next: odd, so that neighbours are in different banks."""
    return line | 1


WIDE = MatrixTile(128, 256, 2, 4, slots=3)
TALL = MatrixTile(192, 128, 4, 2, depth=2)
SQUARE = MatrixTile(128, 128, 2, 4, depth=2)
SHALLOW = MatrixTile(128, 128, 2, 2)
"""It takes half of the workgroup memory, so that two run on a compute unit, and adapters with 32 KiB have it, too."""
HALF = MatrixTile(64, 128, 2, 4, depth=2)
QUARTER = MatrixTile(64, 64, 2, 2, depth=2)
DEEP = MatrixTile(64, 64, 2, 4, depth=4)
LOW = MatrixTile(32, 64, 1, 4, depth=2)
TINY = MatrixTile(32, 32, 2, 2, depth=4)
TILES = (WIDE, TALL, SQUARE, SHALLOW, HALF, QUARTER, DEEP, LOW, TINY)
# Multiply-adds a nanosecond of a compute unit, by how many workgroups of the tile it has (see tile.py), fitted by
# benchmarks/tiles.py to 29 products on an H200, whose weights came from memory. By these costs a product takes 0.4 %
# longer than by the best tile.
RATES = {
    WIDE: (1065, 0.0, 1065, 1),
    TALL: (1037, 0.0, 1037, 1),
    SQUARE: (972, 0.0, 972, 1),
    SHALLOW: (2354, 2.68, 1023, 2),
    HALF: (1329, 1.04, 686, 1),
    QUARTER: (2478, 5.58, 697, 2),
    DEEP: (630, 0.09, 630, 1),
    LOW: (946, 3.16, 503, 3),
    TINY: (439, 1.18, 1000, 4),
}
MOST_UNROLLED = 4
"""Turns of an epilogue that is short. Of 256 threads a unit is busy with, few wait for one another otherwise."""
# Of a model's products: partial sums of many rows do not stay in a cache, and the kernel that adds them up reads what
# the epilogue reads.
SPLIT_NS = 6_000
PARTIAL_NS = 0.0028
ANY_SPLITS = 16
"""Up to so many partial sums every number is tried, beyond it powers of two."""


ACROSS = Side("a", k_major=False, runs=True), Side("b", k_major=False, runs=True)
"""Operands whose lines lie across the sum: tiles that multiply these multiply all."""


def config_for(target: Target, dtype: str) -> MatrixConfig | None:
    """The largest product of fragments of ``dtype`` whose sums are wide enough and whose sizes are whole runs; None
    where the adapter has none.
    """
    configs = [
        config
        for config in target.matrices
        if (config.operand, config.result) == (dtype, BY_NAME[dtype].matrix_sum)
        and not any(size % run_of(dtype) for size in (config.m, config.n, config.k))
    ]
    return max(configs, key=lambda config: config.m * config.n * config.k, default=None)


def tiles_for(target: Target, config: MatrixConfig, sides: Sides = ACROSS) -> list[MatrixTile]:
    """Those that the adapter holds and that multiply operands which lie like ``sides``, if not in any order."""
    return [
        tile for tile in TILES if tile.workgroup_bytes(config) <= target.workgroup_bytes and tile.suits(config, sides)
    ]


def blocking(
    slices: int, m: int, n: int, k: int, tiles: Sequence[MatrixTile], config: MatrixConfig
) -> Blocking[MatrixTile]:
    """The fastest of ``tiles`` and of numbers of partial sums."""
    most = min(k // (4 * MIN_SPLIT_K), MOST_SPLITS)
    counts = [splits for splits in range(1, max(most, 1) + 1) if splits <= ANY_SPLITS or splits & (splits - 1) == 0]

    def cost_ns(option: tuple[MatrixTile, int]) -> float:
        tile, splits = option
        adding = 0 if splits == 1 else SPLIT_NS + slices * (splits + 1) * m * n * PARTIAL_NS
        return product_ns(RATES[tile], tile, splits, tile.step(config), slices, m, n, k) + adding

    tile, splits = min(((tile, splits) for tile in tiles for splits in counts), key=cost_ns)
    return Blocking.of(tile, splits, tile.step(config), k)


@dataclass(frozen=True)
class MatrixKernel:
    """What the ``main`` of a blocked product of operands of ``config.operand`` depends on.

    ``sides``, ``scales``: of a and b. ``tail``: the sum's length may not be a multiple of ``step``. ``together``: how
    many sums ``finish`` takes. ``ahead``: there is ``given`` (see :mod:`.epilogue`), which is read ``READ_AHEAD`` turns
    ahead. ``heavy``: ``finish`` is long, and should be there but once. ``band``: see ``block.wgsl.jinja``. ``halves``:
    of how many a number is the sum, whose fragments alternate (:mod:`.halves`). ``sized``: a kernel may ask for the
    size of its subgroups.
    """

    tile: MatrixTile
    config: MatrixConfig
    sides: Sides
    scales: tuple[Scale | None, Scale | None]
    tail: bool
    together: int
    ahead: bool
    heavy: bool
    band: int
    halves: int
    sized: bool

    @property
    def by_line(self) -> bool:
        """Whether the lines of both operands have scales of their own."""
        return all(scale is not None and scale.by_line for scale in self.scales)

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

    @property
    def out(self) -> _Out:
        return _Out(self)

    @property
    def vectors(self) -> int:
        """Of workgroup memory: of the operands, and later of sums."""
        return max(self.loaders[1].end, self.out.end)

    @property
    def step(self) -> int:
        """How many positions of the sum."""
        return self.tile.step(self.config)

    @property
    def depth(self) -> int:
        """Of fragments, in a part of a step."""
        return self.tile.part(self.config) // self.config.k

    def text(self) -> str:
        """The ``main``."""
        a, b = self.loaders
        text = render(
            "matmul/matrix_tile",
            kernel=self,
            tile=self.tile,
            config=self.config,
            lanes=self.config.subgroup_size,
            a=a,
            b=b,
            out=self.out,
            band=self.band,
            scale_lines=scale_lines(self.scales),
            lanes_of=lanes_of,
        )
        return f"{text}\n"


class _Loader:
    """What brings a side's part of a step to ``tiles``, where it lies in lines from ``start`` on. A line along the sum
    has room for all slots, one across it belongs to one of them.
    """

    def __init__(self, kernel: MatrixKernel, side: Side, scale: Scale | None, size: int, start: int) -> None:
        config, tile = kernel.config, kernel.tile
        self.scaled = scale is not None and not scale.by_line
        self.side, self.x, self.extent = side, side.x, "m" if side.x == "a" else "n"
        self.start, self.tail = start, kernel.tail
        self.operand, self.run, self.fragment_k = config.operand, run_of(config.operand), config.k
        self.fragment_size, self.fragments = (config.m, kernel.rows) if side.x == "a" else (config.n, kernel.columns)
        threads = tile.threads(config)
        outer, inner = (size, kernel.step) if side.k_major else (kernel.step, size)
        self.line = inner // self.run
        """Runs of a line in memory."""
        self.part = tile.part(config) // self.run if side.k_major else tile.part(config)
        """The first part of a step: runs of a line, or lines."""
        self.pitch = _pitch(tile.slots * self.part if side.k_major else self.line)
        self.end = start + (size if side.k_major else tile.slots * self.part) * self.pitch
        self.down = threads // self.line
        """Lines from one of a thread's runs to the next."""
        self.loads = outer // self.down

    @property
    def within(self) -> str:
        """The thread's run of a line, or line, of the step, if that says which part it belongs to; "" where ``j`` does:
        see :meth:`place`.
        """
        if self.side.k_major:
            return f"lid % {self.line}u"
        return "" if self.down <= self.part else f"{self.x}_line"

    def place(self, j: int, first: str, second: str) -> str:
        """Where run ``j`` of this thread is stored, if the parts of a step are in slots ``first`` and ``second``."""
        x = self.x
        if self.side.k_major:
            line, at = f"{x}_line + {j * self.down}u", f"{x}_slot * {self.part}u + {x}_within"
            return f"{self.start}u + ({line}) * {self.pitch}u + {at}"
        if self.within:
            line = f"{x}_slot * {self.part}u + {x}_within"
        else:
            part, down = divmod(j * self.down, self.part)
            line = f"{second if part else first} * {self.part}u + {x}_line + {down}u"
        return f"{self.start}u + ({line}) * {self.pitch}u + {x}_first / {self.run}u"

    @property
    def first_rows(self) -> list[str]:
        """The rows that something is fixed for: of each load, of the run, or of each of its numbers."""
        if self.side.k_major:
            return [f"{self.x}_line + {j * self.down}u" for j in range(self.loads)]
        if self.side.runs:
            return [f"{self.x}_first"]
        return [f"{self.x}_first + {e}u" for e in range(self.run)]

    @property
    def last_row(self) -> str:
        """The last row, or the last run that has anything of the operand in it: rows that are padded to whole runs have
        one more.
        """
        last = f"P.{self.extent} - 1u"
        return last if self.side.k_major or not self.side.runs else f"({last}) / {self.run}u * {self.run}u"

    @property
    def positions(self) -> list[str]:
        """Those of a step that this thread loads at, each the first of ``length``."""
        if not self.side.k_major:
            return [f"{self.x}_line + {j * self.down}u" for j in range(self.loads)]
        if self.side.runs:
            return [f"{self.x}_first"]
        return [f"{self.x}_first + {e}u" for e in range(self.run)]

    @property
    def length(self) -> int:
        return self.run if self.side.k_major and self.side.runs else 1

    def loaded(self, j: int) -> str:
        """Run ``j`` of this thread."""
        x, major = self.x, self.side.k_major
        if self.side.runs:
            row, step = (j, 0) if major else (0, j)
            return f"{x}_run({x}_row{row}, {x}_at{step})"
        elements = [(j, e) if major else (e, j) for e in range(self.run)]
        zero = "0.0" if self.operand == "f16" else "0"
        scale = f" * {x}_scale" if self.scaled else ""
        values = [self._inside(step, f"{x}_value({x}_row{row}, {x}_at{step}){scale}", zero) for row, step in elements]
        each, pack = (2, "pack2x16float(vec2<f32>") if self.operand == "f16" else (4, "pack4xI8(vec4<i32>")
        words = [f"{pack}({', '.join(values[e : e + each])}))" for e in range(0, self.run, each)]
        return f"vec4<u32>({', '.join(words)})"

    def _inside(self, step: int, value: str, zero: str) -> str:
        return f"select({zero}, {value}, {self.x}_in{step})" if self.tail else value

    def stored(self, j: int) -> str:
        """Run ``j`` as it is multiplied."""
        run = f"{self.x}_next{j}"
        if not self.side.runs:
            return run
        run = self._inside(0 if self.side.k_major else j, run, "vec4<u32>()")
        return scaled_run(self.x, run) if self.scaled else run

    def fragment(self, i: int, d: int, slot: str) -> str:
        """Loads fragment ``i`` of this subgroup, the ``d``-th along the sum, of the part in ``slot``."""
        order = "row_major" if self.side.k_major == (self.x == "a") else "col_major"
        first, at, along = f"part_{self.extent}", f"{i * self.fragment_size}u", d * self.fragment_k
        if self.side.k_major:
            place = f"{self.start + along // self.run}u + ({first} + {at}) * {self.pitch}u + {slot} * {self.part}u"
        else:
            start = self.start + along * self.pitch
            place = f"{start}u + ({first} + {at}) / {self.run}u + {slot} * {self.part * self.pitch}u"
        kind = "Left" if self.x == "a" else "Right"
        return f"subgroupMatrixLoad<{kind}, {order}>(&tiles, {place}, {self.pitch}u)"


class _Out:
    """How the sums are stored. They go through workgroup memory, where a thread can name those it stores: of each
    subgroup one row of fragments at a time, and a vector of four neighbours a thread, padded against bank conflicts.
    """

    def __init__(self, kernel: MatrixKernel) -> None:
        tile, config = kernel.tile, kernel.config
        self.config, self.kernel = config, kernel
        self.value = "f32" if config.result == "f32" else "i32"
        self.line = kernel.columns * config.n // 4
        self.pitch = self.line + OUT_PADDING
        self.end = tile.down * tile.across * config.m * self.pitch
        self.quads = config.m * self.line
        """Of a subgroup's row of fragments."""
        turns = self.quads // config.subgroup_size
        self.ahead = min(READ_AHEAD, turns) if kernel.ahead else 0
        self.unrolled = 1 if kernel.heavy or kernel.ahead else gcd(turns, MOST_UNROLLED)
        """Turns whose sums a thread has in hand before it stores the first."""

    @property
    def mine(self) -> str:
        """Where this subgroup's part of workgroup memory starts."""
        return f"part_id * {self.config.m * self.pitch}u"

    def four(self, turn: int) -> str:
        """Four neighbouring sums of a turn at a row of fragments, brought back if they are scaled."""
        sums = f"bitcast<vec4<{self.value}>>(tiles[{self.mine} + line{turn} * {self.pitch}u + column{turn}])"
        if self.kernel.by_line:
            line = f"part_m + row * {self.config.m}u + line{turn}"
            columns = ", ".join(f"b_exponents[part_n + 4u * column{turn} + {e}u]" for e in range(4))
            return f"unscaled({sums}, vec4<i32>(a_exponents[{line}]) + vec4<i32>({columns}))"
        return sums if self.kernel.scales == (None, None) else f"{sums} * back.x * back.y"

    def place(self, turn: int) -> str:
        """The row and the first column of a turn's sums."""
        return f"m0 + part_m + row * {self.config.m}u + line{turn}, n0 + part_n + 4u * column{turn}"

    def given(self, turn: str) -> str:
        """What the epilogue reads for this thread's sums of a turn."""
        quad = f"({turn} + lid % {self.config.subgroup_size}u)"
        m, n = f"m0 + part_m + row * {self.config.m}u + {quad} / {self.line}u", f"{quad} % {self.line}u"
        return f"given(slice, {m}, n0 + part_n + 4u * ({n}))"
