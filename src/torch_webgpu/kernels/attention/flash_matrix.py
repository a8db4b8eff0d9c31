"""Attention over tiles of scores on subgroup matrices: the kernels of :mod:`.flash` for float16 and bfloat16.

The forward rescales what it has summed up only when a score exceeds the last reference by more than ``SLACK``: sums are
fragments, which go through workgroup memory for it, and after the first blocks that is rare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch_webgpu.ir.operation import Spec
from torch_webgpu.kernels.matmul.matrix_tile import config_for
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft
from torch_webgpu.target import MatrixConfig, Target
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Lowered

from .attention import place
from .flash_fragments import RUN, Block, FragmentTile
from .flash_problem import LINE, Flash, backward_draft, block_of_queries, blocks_of, forward_draft, is_whole, result
from .flash_scaled import Scaling, lowered

IS_USED = True
"""Whether matrices are used where there are some."""

SLACK = 4.0
"""Weights are up to exp(4) then, which leaves float16 room for what dropout multiplies them by."""

TILES = {
    "forward": (FragmentTile(64, 64, 2, 2), FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 2)),
    "query": (FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 2)),
    "key": (FragmentTile(64, 32, 2, 2), FragmentTile(32, 32, 2, 2)),
}
"""Of each kernel, the best first."""


def operand(draft: Draft, name: str, arg: int, spec: Spec) -> None:
    """Declares ``<name>_run``: run ``i`` of a line, zeros where there is none."""
    draft.binding(Binding(name, spec.dtype), arg)
    draft.add(
        place(draft.params, name, arg, spec, LINE),
        f"fn {name}_run(b: u32, head: u32, line: u32, i: u32) -> vec4<u32> {{",
        f"  if (line >= {'P.keys' if name in 'kv' else 'P.queries'} || i >= {spec.shape[3] // RUN}u) "
        "{ return vec4<u32>(); }",
        f"  return {name}_load_words4({name}_at(b, head, line, {RUN}u * i) / {RUN}u);",
        "}",
    )


def multiplies(specs: Iterable[Spec], target: Target) -> bool:
    """Whether the adapter multiplies such operands: float16, or bfloat16 (:mod:`.flash_scaled`), in whole runs."""
    dense = all(s.dtype in ("f16", "bf16") and in_groups(s, 3, RUN) for s in specs)
    return IS_USED and dense and config_for(target, "f16") is not None


def choice(kernel: str, p: Flash, others: tuple[Spec, ...], target: Target) -> tuple[FragmentTile, MatrixConfig] | None:
    """The best tile of a kernel over ``p`` and ``others``, and its fragments; None where the adapter cannot."""
    config = config_for(target, "f16")
    if config is None or not multiplies((p.q, p.k, p.v, *others), target):
        return None
    for tile in TILES[kernel]:
        if (
            tile.suits(config)
            and MEMORY[kernel](p.q.shape[3], p.v.shape[3], tile, config).size_bytes <= target.workgroup_bytes
        ):
            return tile, config
    return None


class Memory(Block):
    """The regions of a kernel's workgroup memory."""

    extra_bytes = 0

    @property
    def size_bytes(self) -> int:
        return 16 * self.end + self.extra_bytes


class ForwardMemory(Memory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.q = self.lines_of(tile.rows, width)
        self.kv = self.lines_of(tile.columns, max(width, value_width))
        self.s = self.scores()
        self.w = self.weights()
        self.extra_bytes = 4 * (self.threads + tile.rows + 1)


class QueryMemory(Memory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.q, self.g = self.lines_of(tile.rows, width), self.lines_of(tile.rows, value_width)
        self.k, self.v = self.lines_of(tile.columns, width), self.lines_of(tile.columns, value_width)
        self.s = self.scores()
        self.w = self.weights()


class KeyMemory(Memory):
    def __init__(self, width: int, value_width: int, tile: FragmentTile, config: MatrixConfig) -> None:
        super().__init__(tile, config)
        self.k, self.v = self.lines_of(tile.rows, width), self.lines_of(tile.rows, value_width)
        self.q, self.g = self.lines_of(tile.columns, width), self.lines_of(tile.columns, value_width)
        self.s = self.scores()
        self.w = self.weights()
        self.extra_bytes = 8 * tile.columns


MEMORY = {"forward": ForwardMemory, "query": QueryMemory, "key": KeyMemory}


def counted(p: Flash, at: Block, scaling: Scaling, name: str, along: bool) -> Iterator[str]:
    """Turns a thread's share of a block of products into scores that count: see :func:`.flash_register.counted`."""
    names = [f"{name}_{i}" for i in range(at.share // 4)]
    sizes = (at.tile.rows, at.tile.columns)
    yield from (f"  {s} = {scaling.back(s, 'q', 'k')} * P.scale;" for s in names)
    yield f"  if (!({is_whole(p, *(sizes if along else sizes[::-1]))})) {{"
    for i, s in enumerate(names):
        where = f"l0 + row, s0 + column + {4 * i}u" if along else f"l0 + column + {4 * i}u, s0 + row"
        yield f"    {s} = scores_{'along' if along else 'down'}(b, h, {where}, {s});"
    yield "  }"


def kept(p: Flash, at: Block, along: bool) -> Iterator[str]:
    """Declares ``kept_<i>``, by which a thread's weights are multiplied."""
    for i in range(at.share // 4 if p.dropout_p else 0):
        if along:
            yield f"  let kept_{i} = kept_along(b, h, l0 + row, s0 + column + {4 * i}u);"
            continue
        each = [f"kept_along(b, h, l0 + column + {4 * i + e}u, (s0 + row) / 4u * 4u)[row % 4u]" for e in range(4)]
        yield f"  let kept_{i} = vec4<f32>({', '.join(each)});"


def operands_of(p: Flash, grad: Spec | None = None) -> list[tuple[str, int, Spec]]:
    found = [("q", 0, p.q), ("k", 1, p.k), ("v", 2, p.v)]
    return found if grad is None else [*found, ("g", p.operands, grad)]


def lower_forward(p: Flash, scales: int, tile: FragmentTile, config: MatrixConfig, target: Target) -> Lowered:
    """Grid: blocks of queries, heads, batches."""
    draft, scaling = forward_draft(p, target, operand), Scaling(operands_of(p))
    scaling.read(draft, scales)
    b, h, length, _ = p.q.shape
    blocks = blocks_of(draft, tile.rows, length)
    at = ForwardMemory(p.q.shape[3], p.v.shape[3], tile, config)
    at.brought = scaling.brought
    text = list(forward_text(p, at, scaling, target))
    launch = draft.build("flash_attention_matrix", text, at.threads, (blocks, h, b))
    return lowered(launch, p, operands_of(p), operand, scales)


def forward_text(p: Flash, at: ForwardMemory, scaling: Scaling, target: Target) -> Iterator[str]:
    rows, columns, value_width = at.tile.rows, at.tile.columns, p.v.shape[3]
    vectors = [f"s_{i}" for i in range(at.share // 4)]
    sharing = [f"row_values[row + {t * rows}u]" for t in range(at.threads // rows)]
    yield "const LOWEST = -3.4028234e38;"
    yield f"var<workgroup> row_values: array<f32, {at.threads}>;"
    yield f"var<workgroup> factors: array<f32, {rows}>;"
    yield "var<workgroup> grown: u32;"
    yield from at.start(target.subgroup_sizes)
    yield from block_of_queries(p, rows)
    yield from ["  start_dropout();"] if p.dropout_p else []
    yield from scaling.start(value_width)
    yield from at.resident("q", "h", "l0", at.q)
    yield from at.travelling("k", at.kv)
    yield from at.travelling("v", at.kv)
    yield from at.cleared("y", value_width)
    yield "  var most = LOWEST;"
    yield "  var total = 0.0;"
    yield "  if (lid == 0u) { grown = 0u; }"
    yield from at.fetch("k", "head", "0u", at.kv)
    yield f"  for (var s0 = 0u; s0 < end; s0 += {columns}u) {{"
    yield "  workgroupBarrier();"
    yield from at.arrive("k", at.kv)
    yield "  workgroupBarrier();"
    yield from at.fetch("v", "head", "s0", at.kv)
    yield from at.block_of("s", at.q, at.kv, p.q.shape[3])
    yield from at.put("s", at.s)
    yield "  workgroupBarrier();"
    yield from at.arrive("v", at.kv)
    yield "  {"
    yield from at.read("s", at.s)
    yield from counted(p, at, scaling, "s", True)
    yield f"  let here = {_nested('max', vectors)};"
    yield "  row_values[lid] = max(max(here.x, here.y), max(here.z, here.w));"
    yield "  workgroupBarrier();"
    yield f"  let higher = {_nested('max', sharing)};"
    yield f"  let grows = higher > most + {SLACK};"
    yield "  let factor = select(1.0, exp(most - higher), grows);"
    yield "  most = select(most, higher, grows);"
    yield "  if (grows) { grown = 1u; }"
    yield "  if (column == 0u) { factors[row] = factor; }"
    yield from (f"  {s} = exp({s} - most);" for s in vectors)
    yield f"  total = total * factor + dot({' + '.join(vectors)}, vec4<f32>(1.0));"
    yield from kept(p, at, True)
    yield from (f"  {s} *= kept_{i};" for i, s in enumerate(vectors if p.dropout_p else []))
    yield from at.write("s", at.w)
    yield "  }"
    yield f"  if (s0 + {columns}u < end) {{"
    yield from at.fetch("k", "head", f"s0 + {columns}u", at.kv)
    yield "  }"
    yield "  if (workgroupUniformLoad(&grown) != 0u) {"
    yield from at.rescaled("y", value_width, at.s, "factors[sum_row]")
    yield "  }"
    yield "  if (lid == 0u) { grown = 0u; }"
    yield from at.weighted("y", at.w, at.kv, value_width)
    yield "  }"
    yield "  workgroupBarrier();"
    yield "  row_values[lid] = total;"
    yield "  workgroupBarrier();"
    yield "  if (column == 0u) {"
    yield f"    let all = {' + '.join(sharing)};"
    yield "    factors[row] = all;"
    yield "    if (l0 + row < P.queries) {"
    yield "      lse_store(P.lse_offset + output_row(b, h, l0 + row), logsumexp(most, all));"
    yield "    }"
    yield "  }"
    value = ", ".join(f"weighted({scaling.back(f'four.{c}', 'v')}, factors[sum_row])" for c in "xyzw")
    yield from at.stored("y", value_width, at.s, f"y_put(b, h, l0 + sum_row, unit, vec4<f32>({value}));")
    yield "}"


def _nested(function: str, values: list[str]) -> str:
    found = values[0]
    for value in values[1:]:
        found = f"{function}({found}, {value})"
    return found


def lower_query(p: Flash, grad: Spec, scales: int, tile: FragmentTile, config: MatrixConfig, target: Target) -> Lowered:
    """Grid: blocks of queries, heads, batches."""
    (draft, n), scaling = backward_draft(p, grad, operand), Scaling(operands_of(p, grad))
    scaling.read(draft, scales)
    result(draft, "y", n, p.y, "P.queries", target)
    b, h, length, _ = p.q.shape
    blocks = blocks_of(draft, tile.rows, length)
    at = QueryMemory(p.q.shape[3], p.v.shape[3], tile, config)
    at.brought = scaling.brought
    text = list(query_text(p, at, scaling, target))
    launch = draft.build("flash_attention_query_matrix", text, at.threads, (blocks, h, b))
    return lowered(launch, p, operands_of(p, grad), operand, scales)


def query_text(p: Flash, at: QueryMemory, scaling: Scaling, target: Target) -> Iterator[str]:
    width, value_width, columns = p.q.shape[3], p.v.shape[3], at.tile.columns
    vectors = range(at.share // 4)
    yield from at.start(target.subgroup_sizes)
    yield from block_of_queries(p, at.tile.rows)
    yield from ["  start_dropout();"] if p.dropout_p else []
    yield from scaling.start(value_width)
    yield from at.resident("q", "h", "l0", at.q)
    yield from at.resident("g", "h", "l0", at.g)
    yield "  let lse = lse_of(b, h, l0 + row);"
    yield "  let delta = delta_of(b, h, l0 + row);"
    yield from at.travelling("k", at.k)
    yield from at.travelling("v", at.v)
    yield from at.cleared("y", width)
    yield from at.fetch("k", "head", "0u", at.k)
    yield from at.fetch("v", "head", "0u", at.v)
    yield f"  for (var s0 = 0u; s0 < end; s0 += {columns}u) {{"
    yield "  workgroupBarrier();"
    yield from at.arrive("k", at.k)
    yield from at.arrive("v", at.v)
    yield "  workgroupBarrier();"
    yield f"  if (s0 + {columns}u < end) {{"
    yield from at.fetch("k", "head", f"s0 + {columns}u", at.k)
    yield from at.fetch("v", "head", f"s0 + {columns}u", at.v)
    yield "  }"
    yield from at.block_of("s", at.q, at.k, width)
    yield from at.put("s", at.s)
    yield from at.block_of("d", at.g, at.v, value_width)
    yield "  workgroupBarrier();"
    yield from at.read("w", at.s)
    yield from counted(p, at, scaling, "w", True)
    yield "  workgroupBarrier();"
    yield from at.put("d", at.s)
    yield "  workgroupBarrier();"
    yield "  {"
    yield from at.read("d", at.s)
    yield from kept(p, at, True)
    for i in vectors:
        slope = f"exp(w_{i} - lse) * ({grad_weight(p, scaling, i)} - delta)"
        yield f"  w_{i} = {scaling.slope(slope)};"
    yield from at.write("w", at.w)
    yield "  }"
    yield "  workgroupBarrier();"
    yield from at.weighted("y", at.w, at.k, width)
    yield "  }"
    yield "  workgroupBarrier();"
    yield from at.stored(
        "y", width, at.s, f"y_put(b, h, l0 + sum_row, unit, P.scale * {scaling.back('four', 'slope', 'k')});"
    )
    yield "}"


def grad_weight(p: Flash, scaling: Scaling, i: int) -> str:
    """The gradient of a thread's weights ``i``, of the products ``d_<i>``."""
    grad = scaling.back(f"d_{i}", "g", "v")
    return f"{grad} * kept_{i}" if p.dropout_p else grad


def lower_key(
    p: Flash, grad: Spec, dk: Spec, dv: Spec, scales: int, tile: FragmentTile, config: MatrixConfig, target: Target
) -> Lowered:
    """Grid: blocks of keys, heads of keys, batches."""
    (draft, n), scaling = backward_draft(p, grad, operand), Scaling(operands_of(p, grad))
    scaling.read(draft, scales)
    result(draft, "dk", n, dk, "P.keys", target)
    result(draft, "dv", n + 1, dv, "P.keys", target)
    b, g, length, _ = p.k.shape
    blocks = blocks_of(draft, tile.rows, length)
    at = KeyMemory(p.q.shape[3], p.v.shape[3], tile, config)
    at.brought = scaling.brought
    text = list(key_text(p, at, scaling, target))
    launch = draft.build("flash_attention_key_matrix", text, at.threads, (blocks, g, b))
    return lowered(launch, p, operands_of(p, grad), operand, scales)


def key_text(p: Flash, at: KeyMemory, scaling: Scaling, target: Target) -> Iterator[str]:
    width, value_width, columns = p.q.shape[3], p.v.shape[3], at.tile.columns
    vectors = range(at.share // 4)
    yield f"var<workgroup> lses: array<f32, {columns}>;"
    yield f"var<workgroup> deltas: array<f32, {columns}>;"
    yield from at.start(target.subgroup_sizes)
    yield "  let head = wid.y;"
    yield f"  let s0 = wid.x * {at.tile.rows}u;"
    yield from ["  start_dropout();"] if p.dropout_p else []
    yield from scaling.start(value_width)
    yield from at.resident("k", "head", "s0", at.k)
    yield from at.resident("v", "head", "s0", at.v)
    yield from at.travelling("q", at.q)
    yield from at.travelling("g", at.g)
    yield from at.cleared("dk", width)
    yield from at.cleared("dv", value_width)
    yield "  for (var h = head * SHARED; h < (head + 1u) * SHARED; h += 1u) {"
    yield f"  let first = {f's0 / {columns}u * {columns}u' if p.attention.causal else '0u'};"
    yield from at.fetch("q", "h", "first", at.q)
    yield from at.fetch("g", "h", "first", at.g)
    yield f"  for (var l0 = first; l0 < P.queries; l0 += {columns}u) {{"
    yield "  workgroupBarrier();"
    yield from at.arrive("q", at.q)
    yield from at.arrive("g", at.g)
    yield f"  if (lid < {columns}u) {{"
    yield "    lses[lid] = lse_of(b, h, l0 + lid);"
    yield "    deltas[lid] = delta_of(b, h, l0 + lid);"
    yield "  }"
    yield "  workgroupBarrier();"
    yield f"  if (l0 + {columns}u < P.queries) {{"
    yield from at.fetch("q", "h", f"l0 + {columns}u", at.q)
    yield from at.fetch("g", "h", f"l0 + {columns}u", at.g)
    yield "  }"
    yield from at.block_of("s", at.k, at.q, width)
    yield from at.put("s", at.s)
    yield from at.block_of("d", at.v, at.g, value_width)
    yield "  workgroupBarrier();"
    yield from at.read("w", at.s)
    yield from counted(p, at, scaling, "w", False)
    yield from kept(p, at, False)
    for i in vectors:
        yield f"  w_{i} = exp(w_{i} - {_four('lses', i)});"
        yield f"  var c_{i} = w_{i}{f' * kept_{i}' if p.dropout_p else ''};"
    yield from at.write("c", at.w)
    yield "  workgroupBarrier();"
    yield from at.put("d", at.s)
    yield from at.weighted("dv", at.w, at.g, value_width)
    yield "  workgroupBarrier();"
    yield "  {"
    yield from at.read("d", at.s)
    for i in vectors:
        slope = f"w_{i} * ({grad_weight(p, scaling, i)} - {_four('deltas', i)})"
        yield f"  w_{i} = {scaling.slope(slope)};"
    yield from at.write("w", at.w)
    yield "  }"
    yield "  workgroupBarrier();"
    yield from at.weighted("dk", at.w, at.q, width)
    yield "  }"
    yield "  }"
    yield "  let h = head;"
    yield "  workgroupBarrier();"
    yield from at.stored(
        "dk", width, at.s, f"dk_put(b, h, s0 + sum_row, unit, P.scale * {scaling.back('four', 'slope', 'q')});"
    )
    yield from at.stored("dv", value_width, at.s, f"dv_put(b, h, s0 + sum_row, unit, {scaling.back('four', 'g')});")
    yield "}"


def _four(values: str, i: int) -> str:
    return f"vec4<f32>({', '.join(f'{values}[column + {4 * i + e}u]' for e in range(4))})"
