"""Pointwise kernels of inputs whose blocks are transposed ones of the output, with few rows or few columns.

The layouts of a convolution's weights are such blocks: ``(9, channels)`` against ``(channels, 9)``. A tile of
:mod:`.transposed` would be empty for the most part, and point by point each line of memory is read once for each row.
Here a workgroup has all rows and some columns, which are one run of memory on one side, and a run for each row on the
other. Both go through memory in order, and are exchanged in workgroup memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Operation

from .indexing import GROUPS, LANES, QUAD, Indexing, in_fours, split_number
from .launch import WORKGROUP, Launch
from .quads import QuadWriter, evaluate, numbered
from .transposed import MAX_TURNED, NARROW, in_tile

ELEMENTS = 2048
"""Of a tile, at most: 8 KiB for each input."""
LINE = 32
"""A tile's columns are a multiple of this."""
FEWEST = 64
"""Columns of a block that is worth a tile."""


@dataclass(frozen=True)
class Blocks:
    """The last two dimensions, of ``short`` and ``long`` size, are blocks that ``inputs`` have transposed.
    ``is_long_last``: the last dimension is the long one.
    """

    short: int
    long: int
    is_long_last: bool
    inputs: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Of a tile: so many of the long dimension."""
        return ELEMENTS // self.short // LINE * LINE


def find_blocks(op: Operation, indexing: Indexing) -> Blocks | None:
    """The transposed blocks of an operation whose outputs lie in iteration order, or None."""
    sizes, strides = indexing.sizes, indexing.strides
    if len(sizes) < 2:
        return None
    first, last = sizes[-2:]
    short, long = min(first, last), max(first, last)
    if not (1 < short < NARROW and long >= FEWEST and long % QUAD == 0):
        return None
    inputs = [
        k for k, spec in enumerate(op.inputs) if strides[k][-2:] == (1, first) and BY_NAME[spec.dtype].itemsize <= QUAD
    ][:MAX_TURNED]
    outputs = range(op.n_inputs, len(op.args))
    others = [k for k in range(op.n_inputs) if k not in inputs]
    in_order = all(
        indexing.layout(k) == "linear" and op.args[k].aligned and BY_NAME[op.args[k].dtype].itemsize <= QUAD
        for k in outputs
    )
    # Four elements of a run may lie in two rows, so that others have to lie just so.
    is_long_last = last == long
    if not inputs or not in_order or not (is_long_last or all(indexing.layout(k) != "strided" for k in others)):
        return None
    return Blocks(short, long, is_long_last, tuple(inputs))


def build_blocks(writer: QuadWriter, blocks: Blocks) -> Launch:
    """The kernel of an operation with transposed blocks."""
    indexing, params = writer.indexing, writer.params
    sizes, last = indexing.sizes, indexing.rank - 1
    tiles, slices = -(-blocks.long // blocks.columns), prod(sizes[:-2])
    others = list(range(last - 1))
    pitch = blocks.columns + 1
    text = [
        f"var<workgroup> tile{k}: array<{in_tile(writer.types[k])[0]}, {pitch * blocks.short}>;" for k in blocks.inputs
    ]
    text += [
        *writer.point,
        *GROUPS,
        f"  let long = {params.add('long', blocks.long)};",
        f"  let first = {blocks.columns}u * (group % {params.add('tiles', tiles)});",
        "  let slice = group / P.tiles;",
        f"  if (slice >= {params.add('slices', slices)}) {{ return; }}",
        f"  let columns = min({blocks.columns}u, long - first);",
    ]
    if others:
        axes = [(f"c{d}", f"r{d}", params.add(f"n{d}", sizes[d])) for d in reversed(others[1:])]
        text += split_number("slice", axes, f"c{others[0]}")
    outer = {d: f"c{d}" for d in others}
    for k in blocks.inputs:
        text += _staged(writer, blocks, k, [indexing.offset(k, k), *indexing.terms(k, outer)], pitch)
    text.append("  workgroupBarrier();")
    # A quad of the output: row and column of its first element, of which only one changes within it.
    if blocks.is_long_last:
        text += [
            f"  for (var q = lid; q < {blocks.short}u * (columns / {QUAD}u); q += {WORKGROUP}u) {{",
            f"    let row = q / (columns / {QUAD}u);",
            f"    let column = {QUAD}u * (q % (columns / {QUAD}u));",
        ]
        coordinates = {**outer, last - 1: "row", last: "(first + column)"}
        quads = {k: indexing.quad(k, writer.op.args[k], coordinates) for k in writer.used if k not in blocks.inputs}
        elements = [f"row * {pitch}u + column + {e}u" for e in range(QUAD)]
    else:
        text += [
            f"  for (var q = lid; q < {blocks.short}u * (columns / {QUAD}u); q += {WORKGROUP}u) {{",
            f"    let at = (slice * long + first) * {blocks.short}u + {QUAD}u * q;",
        ]
        quads = {k: indexing.quad(k, writer.op.args[k], {}, "at") for k in writer.used if k not in blocks.inputs}
        place = [f"({QUAD}u * q + {e}u)" for e in range(QUAD)]
        elements = [f"{p} % {blocks.short}u * {pitch}u + {p} / {blocks.short}u" for p in place]
    lanes: list[Sequence[str]] = []
    for k in writer.loaded:
        if k in blocks.inputs:
            back = in_tile(writer.types[k])[2]
            lanes.append([back.format(f"tile{k}[{element}]") for element in elements])
            continue
        lines, values = writer.load(k, quads[k])
        text += ["  " + line for line in lines]
        lanes.append(values)
    text += ["  " + line for line in evaluate(lanes, "0u")]
    for k in writer.outputs:
        if quads[k].fours:
            text.append(f"    {writer.names[k]}_store4({quads[k].group}, {writer.vector(k)});")
        else:
            text += [f"    {writer.names[k]}_store({at}, q{e}.y{k});" for e, at in numbered(quads[k])]
    text.append("  }")
    return writer.launch(text, tiles * slices * WORKGROUP)


def _staged(writer: QuadWriter, blocks: Blocks, k: int, corner: Sequence[str], pitch: int) -> list[str]:
    """Statements that put the workgroup's tile of input ``k`` into workgroup memory, a line a row of the short size.
    ``corner``: the number of the block's first element, in parts.
    """
    indexing, name, spec = writer.indexing, writer.names[k], writer.op.args[k]
    _, put, _ = in_tile(writer.types[k])
    block = " + ".join(corner)
    others = zip(indexing.strides[k][:-2], indexing.sizes[:-2], strict=True)
    count = f"{blocks.short}u * (columns / {QUAD}u)"
    loop = f"  for (var q = lid; q < {count}; q += {WORKGROUP}u) {{"
    if blocks.is_long_last:  # one run of memory
        at = f"{block} + first * {blocks.short}u + {QUAD}u * q"
        place = [f"({QUAD}u * q + {e}u)" for e in range(QUAD)]
        slots = [f"{p} % {blocks.short}u * {pitch}u + {p} / {blocks.short}u" for p in place]
        head = []
    else:  # a run for each row
        head = [f"    let row = q / (columns / {QUAD}u);", f"    let column = {QUAD}u * (q % (columns / {QUAD}u));"]
        at = f"{block} + row * long + first + column"
        slots = [f"row * {pitch}u + column + {e}u" for e in range(QUAD)]
    if in_fours(spec, 1, others):
        load = [f"    let w{k} = {name}_load4(({at}) / {QUAD}u);"]
        values = [f"w{k}.{lane}" for lane in LANES]
    else:
        load = [f"    let at{k} = {at};"]
        values = [f"{name}_load(at{k} + {e}u)" for e in range(QUAD)]
    stores = [f"    tile{k}[{slot}] = {put.format(value)};" for slot, value in zip(slots, values, strict=True)]
    return [loop, *head, *load, *stores, "  }"]
