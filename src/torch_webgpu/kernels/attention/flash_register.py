"""Attention over tiles of scores in registers: the kernels of :mod:`.flash` for any adapter and dtype."""

from __future__ import annotations

from collections.abc import Iterator

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft
from torch_webgpu.target import Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Launch

from .attention import place
from .flash_problem import (
    LINE,
    Flash,
    backward_draft,
    block_of_queries,
    blocks_of,
    forward_draft,
    is_whole,
    result,
    units_of,
)
from .flash_tile import FlashTile, Lines, cleared, put, scores, start, stored, weighted

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


def counted(p: Flash, tile: FlashTile, name: str, along: bool) -> Iterator[str]:
    """Turns the block ``name`` of products into scores that count: rows are queries from ``l0`` and columns keys from
    ``s0`` if ``along``, else the other way round.
    """
    names = [f"{name}_{i}" for i in range(tile.share)]
    yield from (f"  {s} *= P.scale;" for s in names)
    yield f"  if (!({is_whole(p, *((tile.rows, tile.columns) if along else (tile.columns, tile.rows)))})) {{"
    for i, s in enumerate(names):
        row, column = f"ty * {tile.share}u + {i}u", "4u * tx"
        at = f"l0 + {row}, s0 + {column}" if along else f"l0 + {column}, s0 + {row}"
        yield f"    {s} = scores_{'along' if along else 'down'}(b, h, {at}, {s});"
    yield "  }"


def kept(p: Flash, tile: FlashTile, along: bool) -> Iterator[str]:
    """Declares ``kept_<i>``, by which a thread's weights are multiplied."""
    if not p.dropout_p:
        return
    for i in range(0, tile.share, 1 if along else 4):
        row = f"ty * {tile.share}u + {i}u"
        if along:
            yield f"  let kept_{i} = kept_along(b, h, l0 + {row}, s0 + 4u * tx);"
            continue
        for e in range(4):
            yield f"  let of_{i}_{e} = kept_along(b, h, l0 + 4u * tx + {e}u, s0 + {row});"
        for r, c in enumerate("xyzw"):
            yield f"  let kept_{i + r} = vec4<f32>({', '.join(f'of_{i}_{e}.{c}' for e in range(4))});"


def times_kept(p: Flash, value: str, i: int) -> str:
    return f"{value} * kept_{i}" if p.dropout_p else value


def started(p: Flash, tile: FlashTile, most_units: int) -> list[str]:
    return [*start(tile, most_units), *(["  start_dropout();"] if p.dropout_p else [])]


def queries(p: Flash, x: str = "q") -> Lines:
    return Lines(x, "h", "l0", "P.queries", units_of(p.q if x == "q" else p.v))


def keys(p: Flash, x: str = "k") -> Lines:
    return Lines(x, "head", "s0", "P.keys", units_of(p.k if x == "k" else p.v))


def forward_launch(p: Flash, tile: FlashTile, target: Target) -> Launch:
    """Grid: blocks of queries, heads, batches."""
    draft = forward_draft(p, target, operand)
    b, h, length, _ = p.q.shape
    blocks = blocks_of(draft, tile.rows, length)
    return draft.build("flash_attention", list(forward_text(p, tile)), tile.threads, (blocks, h, b))


def forward_text(p: Flash, tile: FlashTile) -> Iterator[str]:
    """Each thread keeps the greatest score of one row; those of its block's rows, and by how much what was summed up
    relative to the last ones must shrink, go through workgroup memory.
    """
    yield "const LOWEST = -3.4028234e38;"
    yield f"var<workgroup> tops: array<f32, {tile.rows}>;"
    yield f"var<workgroup> factors: array<f32, {tile.rows}>;"
    yield from started(p, tile, units_of(p.v))
    yield from block_of_queries(p, tile.rows)
    yield f"  let row = l0 + ty * {tile.share}u;"
    yield from cleared(tile, "y", units_of(p.v))
    yield from (f"  var total_{q} = vec4<f32>();" for q in range(tile.own))
    yield "  var most = LOWEST;"
    yield f"  for (var s0 = 0u; s0 < end; s0 += {tile.columns}u) {{"
    yield from scores(tile, "s", queries(p), keys(p))
    yield from counted(p, tile, "s", True)
    yield from _row_values(tile, "max(max(s_{i}.x, s_{i}.y), max(s_{i}.z, s_{i}.w))")
    yield "  workgroupBarrier();"
    yield f"  if (lid < {tile.rows}u) {{"
    yield "    var higher = most;"
    for t in range(tile.across):
        yield f"    higher = max(higher, block[{t * tile.quads}u + lid / 4u][lid % 4u]);"
    yield "    tops[lid] = higher;"
    yield "    factors[lid] = exp(most - higher);"
    yield "    most = higher;"
    yield "  }"
    yield "  workgroupBarrier();"
    for q in range(tile.own):
        rows = [f"ty * {tile.share}u + {4 * q + i}u" for i in range(4)]
        yield f"  let factor_{q} = vec4<f32>({', '.join(f'factors[{row}]' for row in rows)});"
        for i, row in enumerate(rows):
            yield f"  s_{4 * q + i} = exp(s_{4 * q + i} - tops[{row}]);"
        totals = ", ".join(f"dot(s_{4 * q + i}, vec4<f32>(1.0))" for i in range(4))
        yield f"  total_{q} = total_{q} * factor_{q} + vec4<f32>({totals});"
    for i in range(tile.share):
        yield from (f"  y_{i}_{j} *= factor_{i // 4}.{'xyzw'[i % 4]};" for j in range(tile.sums(units_of(p.v))))
    yield from kept(p, tile, True)
    yield from (f"  s_{i} = {times_kept(p, f's_{i}', i)};" for i in range(tile.share if p.dropout_p else 0))
    yield from put(tile, "s")
    yield from weighted(tile, "y", keys(p, "v"))
    yield "  }"
    yield "  workgroupBarrier();"
    yield from _row_values(tile, "total_{q}.{c}")
    yield f"  if (lid < {tile.rows}u) {{ tops[lid] = most; }}"
    yield "  workgroupBarrier();"
    for q in range(tile.own):
        parts = [f"block[{t * tile.quads}u + ty * {tile.own}u + {q}u]" for t in range(tile.across)]
        yield f"  total_{q} = {' + '.join(parts)};"
    yield "  if (tx == 0u) {"
    for i in range(tile.share):
        value = f"logsumexp(tops[ty * {tile.share}u + {i}u], total_{i // 4}.{'xyzw'[i % 4]})"
        yield f"    if (row + {i}u < P.queries) {{ lse_store(P.lse_offset + output_row(b, h, row + {i}u), {value}); }}"
    yield "  }"
    for i in range(tile.share):
        total = f"total_{i // 4}.{'xyzw'[i % 4]}"
        values = [f"y_{i}_{j}" for j in range(tile.sums(units_of(p.v)))]
        for v in values:
            yield f"  {v} = vec4<f32>({', '.join(f'weighted({v}.{c}, {total})' for c in 'xyzw')});"
    yield from stored(tile, "y", "y", units_of(p.v), "row", "{sum}")
    yield "}"


def _row_values(tile: FlashTile, value: str) -> Iterator[str]:
    """Brings a number for each of a thread's rows to ``block``: those of neighbouring threads, thread by thread."""
    for q in range(tile.own):
        rows = ", ".join(value.format(i=4 * q + i, q=q, c="xyzw"[i]) for i in range(4))
        yield f"  block[tx * {tile.quads}u + ty * {tile.own}u + {q}u] = vec4<f32>({rows});"


def query_launch(p: Flash, grad: Spec, tile: FlashTile, target: Target) -> Launch:
    """Grid: blocks of queries, heads, batches."""
    draft, n = backward_draft(p, grad, operand)
    result(draft, "y", n, p.y, "P.queries", target)
    b, h, length, _ = p.q.shape
    blocks = blocks_of(draft, tile.rows, length)
    return draft.build("flash_attention_query", list(query_text(p, tile)), tile.threads, (blocks, h, b))


def query_text(p: Flash, tile: FlashTile) -> Iterator[str]:
    yield from started(p, tile, units_of(p.k))
    yield from block_of_queries(p, tile.rows)
    yield f"  let row = l0 + ty * {tile.share}u;"
    for i in range(tile.share):
        yield f"  let lse_{i} = lse_of(b, h, row + {i}u);"
        yield f"  let delta_{i} = delta_of(b, h, row + {i}u);"
    yield from cleared(tile, "y", units_of(p.k))
    yield f"  for (var s0 = 0u; s0 < end; s0 += {tile.columns}u) {{"
    yield from scores(tile, "s", queries(p), keys(p))
    yield from counted(p, tile, "s", True)
    yield from scores(tile, "d", queries(p, "g"), keys(p, "v"))
    yield from kept(p, tile, True)
    for i in range(tile.share):
        yield f"  s_{i} = exp(s_{i} - lse_{i}) * ({times_kept(p, f'd_{i}', i)} - delta_{i});"
    yield from put(tile, "s")
    yield from weighted(tile, "y", keys(p))
    yield "  }"
    yield from stored(tile, "y", "y", units_of(p.k), "row", "P.scale * {sum}")
    yield "}"


def key_launch(p: Flash, grad: Spec, dk: Spec, dv: Spec, tile: FlashTile, target: Target) -> Launch:
    """Grid: blocks of keys, heads of keys, batches."""
    draft, n = backward_draft(p, grad, operand)
    result(draft, "dk", n, dk, "P.keys", target)
    result(draft, "dv", n + 1, dv, "P.keys", target)
    b, g, length, _ = p.k.shape
    blocks = blocks_of(draft, tile.rows, length)
    return draft.build("flash_attention_key", list(key_text(p, tile)), tile.threads, (blocks, g, b))


def key_text(p: Flash, tile: FlashTile) -> Iterator[str]:
    width, value_width = units_of(p.k), units_of(p.v)
    yield from started(p, tile, max(width, value_width))
    yield "  let head = wid.y;"
    yield f"  let s0 = wid.x * {tile.rows}u;"
    yield from cleared(tile, "dk", width)
    yield from cleared(tile, "dv", value_width)
    yield "  for (var h = head * SHARED; h < (head + 1u) * SHARED; h += 1u) {"
    first = f"s0 / {tile.columns}u * {tile.columns}u" if p.attention.causal else "0u"
    yield f"  for (var l0 = {first}; l0 < P.queries; l0 += {tile.columns}u) {{"
    yield from scores(tile, "s", keys(p), queries(p))
    yield from counted(p, tile, "s", False)
    for name in ("lse", "delta"):
        values = ", ".join(f"{name}_of(b, h, l0 + 4u * tx + {e}u)" for e in range(4))
        yield f"  let {name} = vec4<f32>({values});"
    yield from kept(p, tile, False)
    for i in range(tile.share):
        yield f"  s_{i} = exp(s_{i} - lse);"
        yield f"  let w_{i} = {times_kept(p, f's_{i}', i)};"
    yield from put(tile, "w")
    yield from weighted(tile, "dv", queries(p, "g"))
    yield from scores(tile, "d", keys(p, "v"), queries(p, "g"))
    yield from (f"  s_{i} *= {times_kept(p, f'd_{i}', i)} - delta;" for i in range(tile.share))
    yield from put(tile, "s")
    yield from weighted(tile, "dk", queries(p))
    yield "  }"
    yield "  }"
    yield "  let h = head;"
    row = f"s0 + ty * {tile.share}u"
    yield from stored(tile, "dk", "dk", width, row, "P.scale * {sum}")
    yield from stored(tile, "dv", "dv", value_width, row, "{sum}")
    yield "}"
