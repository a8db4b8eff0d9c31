"""Substitution of a block of rows that many workgroups do at once, each for its own columns, and the product that the
rows that are left lose. Steps of triangular systems and of LU factorization are such steps.
"""

from __future__ import annotations

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.target import Target

WIDTH = 32
"""Rows of the largest block."""
PHASE = 8
"""Steps after which registers that are turned by one become fewer."""


def width_of(itemsize: int) -> int:
    """Rows of a block: three blocks of them, which a workgroup has, fit in the 16 KiB that WebGPU promises."""
    return WIDTH if itemsize <= 4 else WIDTH // 2


def fours(dtype: str) -> str:
    """WGSL of ``Four``, the numbers that are read from a workgroup's memory at once."""
    return f"alias Four = {'vec4<f32>' if dtype == 'f32' else 'array<T, 4>'};"


def turned(size: int, phase: int) -> list[int]:
    """Which of ``size`` registers has each number, after each was turned to the front."""
    return [size - phase * (j // phase + 1) + j % phase for j in range(size)]


def tile_of(threads: int) -> tuple[int, int]:
    """Rows and columns of a tile of which each thread has four numbers."""
    power = threads.bit_length() - 1
    return 2 << (power + 1) // 2, 2 << power // 2


def substitution_bytes(dtype: str, threads: int) -> int:
    """Memory of a workgroup whose tile and block are the largest."""
    itemsize = BY_NAME[dtype].itemsize
    depth = width_of(itemsize)
    lines = tile_of(threads)[0] + max(tile_of(threads)[1], depth)
    return (depth * (depth + 1) + lines * (depth + 4)) * itemsize


def substitution(
    depth: int,
    threads: int,
    target: Target,
    *,
    unit: bool,
    least_columns: int = 0,
    triangle_by_rows: bool = False,
    left_by_rows: bool = False,
    block_by_rows: bool = False,
) -> dict[str, object]:
    """The values of the template for blocks of ``depth`` rows. ``least_columns`` are solved for at once in any case."""
    tile_rows, tile_columns = tile_of(threads)
    phase = depth if target.software else min(depth, PHASE)
    return {
        "depth": depth,
        "threads": threads,
        "unit": unit,
        "triangle_by_rows": triangle_by_rows,
        "left_by_rows": left_by_rows,
        "block_by_rows": block_by_rows,
        "solved_columns": max(tile_columns, least_columns),
        "tile_rows": tile_rows,
        "tile_columns": tile_columns,
        "row_phase": phase,
        "turned_rows": turned(depth, phase),
    }
