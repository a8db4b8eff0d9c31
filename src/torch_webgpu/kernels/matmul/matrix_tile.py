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

from collections.abc import Sequence
from dataclasses import dataclass

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.kernels.template import render
from torch_webgpu.target import MatrixConfig, Target

from .operand import RUN_BYTES, Scale, Side, Sides, run_of
from .scaled import scale_lines, scaled_run
from .tile import MIN_SPLIT_K, READ_AHEAD, Blocking, cost_ns, lanes_of


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
        """The most that the operands take, in either order, or the sums on their way out; beside exponents of lines."""
        run = run_of(config.operand)
        lines = sum(max(size * (self.k // run + 1), self.k * (size // run + 1)) for size in (self.m, self.n))
        sums = self.down * self.across * config.m * (self.n // self.across + 4)
        return max(RUN_BYTES * lines, 4 * sums) + 4 * (self.m + self.n)

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
    configs = [
        config
        for config in target.matrices
        if (config.operand, config.result) == (dtype, BY_NAME[dtype].matrix_sum)
        and not any(size % run_of(dtype) for size in (config.m, config.n, config.k))
    ]
    return max(configs, key=lambda config: config.m * config.n * config.k, default=None)


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
    def positions(self) -> list[list[int]]:
        """Of a step's fragments: the halves of a number at a time."""
        starts = range(0, self.tile.k, self.halves * self.config.k)
        return [[start + half * self.config.k for half in range(self.halves)] for start in starts]

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
            scale_lines=scale_lines(self.scales),
            lanes_of=lanes_of,
        )
        return f"{text}\n"


class _Loader:
    """What brings a side's part of a step to ``tiles``, from ``start`` on: lines of runs, and one to pad."""

    def __init__(self, kernel: MatrixKernel, side: Side, scale: Scale | None, size: int, start: int) -> None:
        config, tile = kernel.config, kernel.tile
        self.scaled = scale is not None and not scale.by_line
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
            return self._inside(step, f"{x}_run({x}_row{row}, {x}_at{step})", "vec4<u32>()")
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
        return scaled_run(self.x, run) if self.scaled and self.side.runs else run

    def fragment(self, at: str, along: int, kk: int) -> str:
        """Loads the fragment whose first row (or column) is ``along`` + ``at``, from position ``kk`` of the step."""
        order = "row_major" if self.side.k_major == (self.x == "a") else "col_major"
        if self.side.k_major:
            first = f"({at} + {along}u) * {self.pitch}u + {self.start + kk // self.run}u"
        else:
            first = f"({at} + {along}u) / {self.run}u + {self.start + kk * self.pitch}u"
        kind = "Left" if self.x == "a" else "Right"
        return f"subgroupMatrixLoad<{kind}, {order}>(&tiles, {first}, {self.pitch}u)"


class _Out:
    """How the sums are stored. They go through workgroup memory, where a thread can name those it stores: of each
    subgroup one row of fragments at a time, and a vector of four neighbours a thread, padded against bank conflicts.
    """

    def __init__(self, kernel: MatrixKernel) -> None:
        tile, config = kernel.tile, kernel.config
        self.config, self.kernel = config, kernel
        self.value = "f32" if config.result == "f32" else "i32"
        self.line = kernel.columns * config.n // 4
        self.pitch = self.line + 1
        self.end = tile.down * tile.across * config.m * self.pitch
        self.quads = config.m * self.line
        """Of a subgroup's row of fragments."""
        self.ahead = min(READ_AHEAD, self.quads // config.subgroup_size) if kernel.ahead else 0

    @property
    def mine(self) -> str:
        """Where this subgroup's part of workgroup memory starts."""
        return f"part_id * {self.config.m * self.pitch}u"

    @property
    def four(self) -> str:
        """Four neighbouring sums, brought back if they are scaled."""
        sums = f"bitcast<vec4<{self.value}>>(tiles[{self.mine} + line * {self.pitch}u + column])"
        if self.kernel.by_line:
            row = f"part_m + row * {self.config.m}u + line"
            columns = ", ".join(f"b_exponents[part_n + 4u * column + {e}u]" for e in range(4))
            return f"unscaled({sums}, vec4<i32>(a_exponents[{row}]) + vec4<i32>({columns}))"
        return sums if self.kernel.scales == (None, None) else f"{sums} * back.x * back.y"

    def given(self, turn: str) -> str:
        """What the epilogue reads for this thread's sums of a turn."""
        quad = f"({turn} + lid % {self.config.subgroup_size}u)"
        m, n = f"m0 + part_m + row * {self.config.m}u + {quad} / {self.line}u", f"{quad} % {self.line}u"
        return f"given(slice, {m}, n0 + part_n + 4u * ({n}))"
