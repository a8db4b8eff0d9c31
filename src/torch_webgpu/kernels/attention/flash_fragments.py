"""Blocks of attention's scores on subgroup matrices: the counterpart of :mod:`.flash_tile` for float16.

A workgroup computes ``rows`` x ``columns`` scores. Each subgroup has whole rows of them, as a grid of fragments in
named variables, and keeps its rows' lines, and sums over these, as fragments, too. What all subgroups multiply by lies
in workgroup memory, as lines of runs of 16 bytes, one of them to pad, and zeros up to whole fragments.

Fragments have no elements that a program could name: a block goes through workgroup memory as float32, where each
thread takes its share of one row of its subgroup's, and comes back as float16 in the place of what that thread has
taken. So does what else belongs to rows: operands on their way to fragments, sums that are rescaled or stored.

The less workgroup memory, the more workgroups run on a multiprocessor, and fill each other's gaps: an H200's driver
leaves them about 50 KB together, whatever the hardware has.

WGSL: https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md, as Dawn has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_webgpu.target import MatrixConfig
from torch_webgpu.wgsl.tiling import doubles

RUN = 8
"""Numbers of float16 in a run."""


@dataclass(frozen=True)
class FragmentTile:
    """Sizes of a block, and how many subgroups share its rows."""

    rows: int
    columns: int
    subgroups: int

    def threads(self, config: MatrixConfig) -> int:
        return self.subgroups * config.subgroup_size

    def suits(self, config: MatrixConfig) -> bool:
        """Whether fragments divide it, and its threads have equal shares of a row, in whole fragments."""
        part, rest = divmod(self.rows, self.subgroups)
        if rest or part % config.m or config.subgroup_size % part or self.columns % config.n:
            return False
        return self.columns * part % (config.subgroup_size * max(RUN, config.k)) == 0


@dataclass(frozen=True)
class TileRegion:
    """Lines in workgroup memory, from run ``start`` on, ``pitch`` runs from one to the next."""

    start: int
    lines: int
    pitch: int

    @property
    def runs(self) -> int:
        """Of a line; one more pads it."""
        return self.pitch - 1

    @property
    def end(self) -> int:
        return self.start + self.lines * self.pitch


class FragmentMemory:
    """Workgroup memory of a kernel over blocks of one size, and how its threads share these."""

    extra_bytes = 0
    """Of what is not in regions."""

    def __init__(self, tile: FragmentTile, config: MatrixConfig) -> None:
        self.tile, self.config = tile, config
        self.threads = tile.threads(config)
        self.part_rows = tile.rows // tile.subgroups
        """Of a subgroup."""
        self.down, self.across = self.part_rows // config.m, tile.columns // config.n
        """Fragments of a subgroup's scores."""
        self.share = tile.columns * self.part_rows // config.subgroup_size
        """Columns of a thread."""
        self.run = RUN
        self.s = TileRegion(0, tile.rows, tile.columns // 4 + 1)
        """Scores, as float32."""
        self.end = self.s.end

    @property
    def size_bytes(self) -> int:
        return 16 * self.end + self.extra_bytes

    def lines_of(self, lines: int, width: int) -> TileRegion:
        """Memory for lines of so many numbers."""
        region = TileRegion(self.end, lines, self.padded(width) // RUN + 1)
        self.end = region.end
        return region

    def padded(self, width: int) -> int:
        """Numbers of a line as it lies in workgroup memory."""
        whole = max(self.config.k, self.config.n)
        return -(-width // whole) * whole

    def widths(self, width: int) -> int:
        """Fragments along a line of sums."""
        return self.padded(width) // self.config.n

    def whole(self, width: int) -> int:
        """Numbers of a line up to the end of its last fragment."""
        return -(-width // self.config.k) * self.config.k

    def weight_run(self, column: int) -> int:
        """Where a row's weights from ``column`` on are, in runs: each thread leaves them where its scores were."""
        share, place = divmod(column, self.share)
        return share * self.share // 4 + place // RUN

    def turns(self, to: TileRegion) -> int:
        """How many runs of a region a thread brings, at most."""
        return -(-to.lines * to.runs // self.threads)

    # Expressions

    def vectors(self, name: str) -> list[str]:
        """A thread's share of block ``name``."""
        return [f"{name}_{i}" for i in range(self.share // 4)]

    def place(self, run: int, i: int) -> str:
        """Where fragment ``i`` down of a subgroup's rows starts in the memory of scores, runs into their lines."""
        return f"{self.s.start + run + i * self.config.m * self.s.pitch}u + part_row * {self.s.pitch}u"

    def left(self, run: int, i: int) -> str:
        """That fragment, to be multiplied."""
        return f"subgroupMatrixLoad<Left, row_major>(&tiles, {self.place(run, i)}, {self.s.pitch}u)"

    def steps(self) -> list[int]:
        """The distances of the threads whose values are exchanged so that all that share a row have the same."""
        return doubles(self.part_rows, self.config.subgroup_size)

    def four(self, name: str, i: int) -> str:
        """What ``name``, in workgroup memory, has for the columns of vector ``i``."""
        return f"vec4<f32>({', '.join(f'{name}[column + {4 * i + e}u]' for e in range(4))})"

    def greatest(self, values: list[str]) -> str:
        first, *others = values
        return "max(" * len(others) + first + "".join(f", {value})" for value in others)
