"""Attention over tiles of scores in registers: the kernels of :mod:`.flash` for any adapter and dtype."""

from __future__ import annotations

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Launch

from .attention import place
from .flash_problem import KERNELS, LINE, Flash, units_of
from .flash_tile import FlashTile, Lines

TALL = FlashTile(128, 64, 8)
SQUARE = FlashTile(64, 64, 8)
DENSE = FlashTile(64, 64, 4)
FLAT = FlashTile(64, 32, 8)
SMALL = FlashTile(32, 32, 4, 8)
TILES = {"forward": (TALL, SQUARE, FLAT, SMALL), "query": (TALL, SQUARE, FLAT, SMALL), "key": (TALL, DENSE, SMALL)}
"""Of each kernel, the best first, as measured on an H200; the tallest takes 46 KiB. That of keys has two sums to keep:
more threads, each with less.
"""
SOFTWARE_TILES = (DENSE, SMALL)
"""Those that compile fastest."""


def tile_for(kernel: str, most_units: int, target: Target) -> FlashTile:
    """The tile of a kernel that weighs lines of up to so many units."""
    tiles = SOFTWARE_TILES if target.software else TILES[kernel]
    return next(tile for tile in tiles if tile.workgroup_bytes(most_units) <= target.workgroup_bytes)


def operand(draft: Draft, name: str, arg: int, spec: Spec) -> None:
    """Declares what :mod:`.flash_tile` reads operand ``name`` by."""
    width = spec.shape[3]
    draft.binding(Binding(name, spec.dtype), arg)
    draft.add(
        place(draft.params, name, arg, spec, LINE),
        f"fn {name}_line(b: u32, head: u32, line: u32) -> u32 {{ return {name}_at(b, head, line, 0u); }}",
    )
    if in_groups(spec, 3):
        four = f"return {name}_load4(line / 4u + i);"
    else:
        exists = f"select(0.0, {name}_load(line + {name}_delta(0u, 0u, 0u, min(e, {width - 1}u))), e < {width}u)"
        draft.add(f"fn {name}_one(line: u32, e: u32) -> f32 {{ return {exists}; }}")
        ones = ", ".join(f"{name}_one(line, 4u * i + {e}u)" for e in range(4))
        four = f"return vec4<f32>({ones});"
    draft.add(f"fn {name}_four(line: u32, i: u32) -> vec4<f32> {{ {four} }}")


def lines_of(p: Flash) -> dict[str, Lines]:
    """The operands by their names in the paper: dO is the gradient of the result."""
    widths = {"Q": units_of(p.q), "K": units_of(p.k), "V": units_of(p.v)}
    queries, keys = ("h", "first_query", "P.queries"), ("head", "first_key", "P.keys")
    lines = {
        "Q": Lines("q", *queries, widths["Q"]),
        "K": Lines("k", *keys, widths["K"]),
        "V": Lines("v", *keys, widths["V"]),
    }
    return lines if p.grad is None else {**lines, "dO": Lines("g", *queries, widths["V"])}


def launch(kernel: str, p: Flash, target: Target) -> Launch:
    """One of :data:`.flash_problem.KERNELS`, in registers."""
    widths = {"forward": [p.v], "query": [p.k], "key": [p.q, p.v]}
    tile = tile_for(kernel, max(map(units_of, widths[kernel])), target)
    draft, grid = KERNELS[kernel].draft(p, tile.rows, tile.columns, target, operand, has_one_row=False)
    text = render(f"attention/flash_{KERNELS[kernel].template}", p=p, tile=tile, **lines_of(p))
    return draft.build(KERNELS[kernel].name, [text], tile.threads, grid)
