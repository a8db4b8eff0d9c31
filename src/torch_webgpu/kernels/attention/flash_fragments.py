"""Blocks of attention's scores on subgroup matrices: the counterpart of :mod:`.flash_tile` for float16.

A workgroup computes ``rows`` x ``columns`` scores; its subgroups share them, and the sums over lines, as ``down`` x
``across`` parts, each a grid of fragments in named variables. Operands lie in workgroup memory as lines of runs of 16
bytes, one of them to pad, and zeros up to whole fragments. Fragments have no elements that a program could name: blocks
go through workgroup memory as float32, where each thread takes its share of one row, and come back as float16.

WGSL: https://github.com/gpuweb/gpuweb/blob/main/proposals/subgroup-matrix.md, as Dawn has it.
"""

from __future__ import annotations

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
        self.down, self.across = tile.rows // tile.down // config.m, tile.columns // tile.across // config.n
        """Fragments of a part."""
        self.share = tile.columns * tile.rows // self.threads
        """Columns of a thread."""
        self.run = RUN
        self.end = 0

    @property
    def size_bytes(self) -> int:
        return 16 * self.end + self.extra_bytes

    def region(self, lines: int, runs: int, least: int = 0) -> TileRegion:
        """Memory for lines of so many runs."""
        region = TileRegion(self.end, lines, runs + 1)
        self.end = max(region.end, region.start + least)
        return region

    def padded(self, width: int) -> int:
        """Numbers of a line as it lies in workgroup memory."""
        whole = max(self.config.k, self.tile.across * self.config.n)
        return -(-width // whole) * whole

    def lines_of(self, lines: int, width: int) -> TileRegion:
        return self.region(lines, self.padded(width) // RUN)

    def scores(self) -> TileRegion:
        """Float32; sums pass through it, too."""
        return self.region(self.tile.rows, self.tile.columns // 4, self.tile.parts * self.passed_runs)

    def weights(self) -> TileRegion:
        return self.region(self.tile.rows, self.tile.columns // RUN)

    @property
    def passed_runs(self) -> int:
        return self.config.m * (self.config.n // 4 + 1)

    def widths(self, width: int) -> int:
        """Fragments along a line that a part adds up."""
        return self.padded(width) // self.tile.across // self.config.n

    def whole(self, width: int) -> int:
        """Numbers of a line up to the end of its last fragment."""
        return -(-width // self.config.k) * self.config.k

    def turns(self, to: TileRegion) -> int:
        """How many runs of a region a thread brings, at most."""
        return -(-to.lines * to.runs // self.threads)

    # Expressions

    def vectors(self, name: str) -> list[str]:
        """A thread's share of block ``name``."""
        return [f"{name}_{i}" for i in range(self.share // 4)]

    def of_row(self, name: str) -> list[str]:
        """What the threads that share a row left in ``name``, in workgroup memory."""
        return [f"{name}[row + {rows}u]" for rows in range(0, self.threads, self.tile.rows)]

    def four(self, name: str, i: int) -> str:
        """What ``name``, in workgroup memory, has for the columns of vector ``i``."""
        return f"vec4<f32>({', '.join(f'{name}[column + {4 * i + e}u]' for e in range(4))})"

    def greatest(self, values: list[str]) -> str:
        first, *others = values
        return "max(" * len(others) + first + "".join(f", {value})" for value in others)
