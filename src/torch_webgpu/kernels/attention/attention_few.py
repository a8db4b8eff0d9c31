"""Attention of few queries, as in decoding: its speed is that of reading keys and values once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft, constant, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import store_mode
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import MAX_GROUPS, Launch, Lowered, Source
from torch_webgpu.wgsl.tiling import doubles, power_of_two

from .attention import KEY, QUERY, Attention, AttentionProblem, operands_of, output_row, place, visibility

QUERY_NUMBERS = 1024
"""As many numbers of queries as a workgroup keeps."""
MOST_VALUES = 256
"""The widest values."""
SUMS = 2048
"""Numbers that its threads hand each other: with the rest it needs, less than 16 KiB."""
PART_ROWS = 512
"""Queries of its parts, each with two numbers in that memory."""
VECTOR_NUMBERS = 64
"""As many numbers of keys and values as a thread reads in a step, if they are vectors: its registers."""
MOST_SCORES = 16
"""Of a team in a step."""
MOST_SCORES_IN_MEMORY = 8
"""The same where teams add up scores in workgroup memory."""
LAUNCH_BYTES = 256 << 10
"""Of keys and values that a compute unit reads in the time of a second launch."""


class Sizes(NamedTuple):
    """``threads`` of a workgroup; ``lanes``: at most so many share a key; ``rows``: at most so many queries share what
    a workgroup reads of keys and values; ``groups``: workgroups that are at work at once, to which keys are split.
    """

    threads: int
    lanes: int
    rows: int
    groups: int


GPU = Sizes(256, 32, 8, 264)
"""Two workgroups on each compute unit of a large one."""
SOFTWARE = Sizes(64, 4, 4, 2)

VALUE = "part: u32, b: u32, h: u32, l: u32, e: u32, value: f32, total: f32"
FINISH = f"""
fn finish_query(part: u32, most: f32, total: f32) {{ lse_store(P.lse_offset + part, logsumexp(most, total)); }}
fn finish_value({VALUE}) {{ y_store(y_at(b, h, l, e), weighted(value, total)); }}"""
FINISH_PART = f"""
fn finish_query(part: u32, most: f32, total: f32) {{
  partials_store(P.totals + 2u * part, most);
  partials_store(P.totals + 2u * part + 1u, total);
}}
fn finish_value({VALUE}) {{ partials_store(part * VALUES + e, value); }}"""


def extern(a: Attention) -> Extern:
    """Arguments: q, k, v, the mask if there is one, what a function of scores reads → (B, H, L, D), and
    log(sum(exp(scores))) of each query as dense float32 (B, H, L), which is the highest float32 for a query that sees
    nothing.
    """
    return Extern(lower_few, (a,))


def fits(batch: int, heads: int, queries: int, width: int, value_width: int) -> bool:
    """Whether the kernel computes this."""
    in_memory = 0 < width <= QUERY_NUMBERS and 0 < value_width <= MOST_VALUES
    return in_memory and heads * queries <= MAX_GROUPS and batch <= MAX_GROUPS


@dataclass(frozen=True)
class Few:
    """How few queries are computed.

    * ``rows`` of those that share keys by each workgroup of ``threads``, in ``blocks``
    * ``splits`` parts of the keys, of ``chunk``
    * ``units`` of a query or key and ``values`` of a value, of ``size`` numbers each
    * ``lanes``: threads of a team, which takes ``at_once`` keys a step; powers of two
    * ``subgroup``: threads that hand each other numbers, 0 where they go through workgroup memory
    """

    threads: int
    rows: int
    blocks: int
    units: int
    values: int
    size: int
    lanes: int
    at_once: int
    subgroup: int
    splits: int = 1
    chunk: int = 0

    @property
    def slots(self) -> int:
        """Teams of a workgroup."""
        return self.threads // self.lanes

    @property
    def tile(self) -> int:
        """Keys of a step."""
        return self.slots * self.at_once

    @property
    def key_units(self) -> int:
        """Of a thread."""
        return -(-self.units // self.lanes)

    @property
    def value_units(self) -> int:
        return -(-self.values // self.lanes)

    @property
    def part(self) -> int:
        """Threads whose sums become one before they meet others' in workgroup memory."""
        return max(self.subgroup, self.lanes)

    @property
    def parts(self) -> int:
        return self.threads // self.part

    @property
    def rows_at_once(self) -> int:
        """As many as there is workgroup memory for, when the parts meet."""
        return max(1, SUMS // (self.parts * self.values * self.size))

    @property
    def sums(self) -> int:
        """Numbers in that memory."""
        steps = 0 if self.subgroup else self.rows * self.at_once * self.threads
        return max(steps, min(self.rows, self.rows_at_once) * self.parts * self.values * self.size)

    @property
    def weighed(self) -> int:
        """Keys of a step that a thread weighs."""
        return 1 if self.subgroup else self.at_once

    @property
    def halves(self) -> list[int]:
        """Distances at which threads of a subgroup share a step's keys among them."""
        return doubles(1, self.at_once)[::-1] if self.subgroup else []

    @property
    def others(self) -> list[int]:
        """Distances of threads that weigh the same key."""
        return doubles(self.at_once, self.lanes)

    @property
    def teams(self) -> list[int]:
        """Distances of a subgroup's teams."""
        return doubles(self.lanes, self.subgroup)

    def own(self, o: int) -> str:
        """WGSL: the number, of a step, of the key that a thread weighs as number ``o``."""
        return f"lane % {self.at_once}u" if self.subgroup else f"{o}u"

    def weight(self, u: int) -> str:
        """WGSL: the weight of key ``u`` of a thread's team."""
        if not self.halves:
            return f"weight_{u}"
        return f"subgroupShuffle(weight_0, (lid & {self.subgroup - self.at_once}u) + {u}u)"

    def of_other(self, value: str, bit: int) -> str:
        """WGSL: the unit ``value`` of the thread at a distance in the subgroup."""
        parts = [f"subgroupShuffleXor({value}{part}, {bit}u)" for part in Unit(self.size).vectors]
        return f"V({', '.join(parts)})"


def choice(p: AttentionProblem, target: Target) -> Few:
    """How a problem is computed.

    Queries share what is read of keys as far as that leaves a workgroup for each compute unit: otherwise reading again,
    from caches, takes less time than computing more. Then keys are split, but where larger workgroups, each of which
    has a unit to itself, are done without.
    """
    sizes = SOFTWARE if target.software else GPU
    size = unit_of(p.q, p.k, p.v)
    width, value_width = p.k.shape[3], p.v.shape[3]
    subgroup = subgroup_for(sizes, value_width, target)
    lanes = lanes_for(sizes, max(width, value_width) // size, value_width, subgroup)
    own = -(-width // (size * lanes)) + -(-value_width // (size * lanes))
    sharing = p.shared * p.q.shape[2]
    blocks = -(-sharing // min(sizes.rows, QUERY_NUMBERS // width))
    while True:
        rows = -(-sharing // blocks)
        scores = (MOST_SCORES if subgroup else MOST_SCORES_IN_MEMORY) // rows
        at_once = max(1, min(lanes, power_below(VECTOR_NUMBERS // (own * size)), power_below(scores)))
        few = Few(sizes.threads, rows, blocks, width // size, value_width // size, size, lanes, at_once, subgroup)
        steps = -(-p.keys // few.tile)
        groups = p.k.shape[0] * p.k.shape[1] * blocks
        if rows == 1 or groups * steps >= sizes.groups:
            break
        blocks = min(2 * blocks, sharing)
    larger = replace(few, threads=2 * sizes.threads)
    has_room = larger.subgroup and 2 * sizes.threads <= target.workgroup_threads and larger.sums <= SUMS
    is_short = p.keys * (width + value_width) * BY_NAME[p.k.dtype].itemsize <= LAUNCH_BYTES
    if has_room and 2 * groups <= sizes.groups and is_short:
        few, steps = larger, -(-p.keys // larger.tile)
    splits = 1 if is_short else min(max(1, sizes.groups // groups), steps)
    chunk = -(-steps // splits) * few.tile
    return replace(few, splits=-(-p.keys // chunk), chunk=chunk)


def subgroup_for(sizes: Sizes, value_width: int, target: Target) -> int:
    """Threads of subgroups, 0 where there are none, or too small ones for the memory in which their sums meet."""
    return target.subgroup_size if sizes.threads * value_width <= target.subgroup_size * SUMS else 0


def lanes_for(sizes: Sizes, units: int, value_width: int, subgroup: int) -> int:
    """Threads for keys and values of up to ``units``: no more than are in a subgroup, where there are such."""
    lanes = min(sizes.lanes, power_of_two(units))
    if subgroup:
        return min(subgroup, lanes)
    in_memory = max(-(-sizes.threads * value_width // SUMS), sizes.threads * sizes.rows // PART_ROWS, 1)
    return max(power_of_two(in_memory), lanes)


def power_below(n: int) -> int:
    """The largest power of two up to ``n``, or 0."""
    return 1 << n.bit_length() - 1 if n else 0


def lower_few(op: Operation, alias: tuple[int, ...], target: Target, attention: Attention) -> Lowered:
    y, _ = op.outputs
    p = AttentionProblem(attention, *operands_of(op, attention), y)
    chosen, n = choice(p, target), len(op.args)
    first = few_launch(p, chosen, n, target)
    if chosen.splits == 1:
        return Lowered((first,))
    values, totals = p.count * chosen.splits * p.v.shape[3], p.count * chosen.splits * 2
    size_bytes = -(-(values + totals) // 4) * 16
    return Lowered((first, combine_launch(p, chosen.splits, n, target)), (size_bytes,))


def unit_of(*specs: Spec) -> int:
    """Numbers of an operand's innermost dimension that a thread reads at once: 16 bytes of all, or one."""
    sizes = {BY_NAME[s.dtype].itemsize for s in specs}
    for size in (8, 4):
        if max(sizes) * size <= 16 and all(in_groups(s, 3, size) for s in specs):
            return size
    return 1


@dataclass(frozen=True)
class Unit:
    """WGSL of units of ``size`` numbers: one, a vector of four, or a pair of those."""

    size: int

    @property
    def type(self) -> str:
        return {1: "f32", 4: "vec4<f32>", 8: "mat2x4<f32>"}[self.size]

    @property
    def vectors(self) -> list[str]:
        """Its parts that are vectors, or the number."""
        return ["[0]", "[1]"] if self.size == 8 else [""]

    @property
    def declarations(self) -> list[str]:
        """``V``, its type; ``WIDTH``, how many numbers it has; ``product`` of two."""
        product = " + ".join(f"dot(a{v}, b{v})" for v in self.vectors) if self.size > 1 else "a * b"
        return [
            f"alias V = {self.type};",
            constant("WIDTH", self.size),
            f"fn product(a: V, b: V) -> f32 {{ return {product}; }}",
        ]

    def keep(self, stride: str) -> str:
        """``keep``, which stores number c at ``sums[(page + c) * stride + at]``."""
        numbers = [vector + c for vector in self.vectors for c in ([".x", ".y", ".z", ".w"] if self.size > 1 else [""])]
        stores = [f"sums[(page + {c}u) * ({stride}) + at] = v{number};" for c, number in enumerate(numbers)]
        return f"fn keep(page: u32, at: u32, v: V) {{ {' '.join(stores)} }}"

    def queries(self) -> list[str]:
        """``keep_query`` and ``query_unit``, of workgroup memory. A unit's vectors lie apart there, so that neighbours
        read other banks.
        """
        places = [f"queries[(row * VECTORS + {n}u) * UNITS + unit]" for n in range(len(self.vectors))]
        kept = " ".join(f"{place} = v{vector};" for place, vector in zip(places, self.vectors, strict=True))
        return [
            f"alias VECTOR = {'f32' if self.size == 1 else 'vec4<f32>'};",
            constant("VECTORS", len(self.vectors)),
            f"fn keep_query(row: u32, unit: u32, v: V) {{ {kept} }}",
            f"fn query_unit(row: u32, unit: u32) -> V {{ return V({', '.join(places)}); }}",
        ]

    def reader(self, name: str, dtype: str, names: tuple[str, ...], target: Target) -> str:
        """``<name>_unit``: the numbers of unit ``i`` along the innermost dimension."""
        *outer, _ = names
        arguments = ", ".join(f"{c}: u32" for c in outer)
        at = f"{name}_at({', '.join(outer)}, {'i' if self.size == 1 else f'{self.size}u * i'})"
        load = f"return {name}_load({at});" if self.size == 1 else f"return {name}_load4({at} / 4u);"
        if self.size == 8:
            pairs = [f"unpack2x16float(w.{c})" for c in "xyzw"]
            if dtype == "bf16" or not target.float16:
                pairs = [f"vec2<f32>({dtype}_unpack(w.{c}, 0u), {dtype}_unpack(w.{c}, 1u))" for c in "xyzw"]
            vectors = f"vec4<f32>({pairs[0]}, {pairs[1]}), vec4<f32>({pairs[2]}, {pairs[3]})"
            load = f"let w = {name}_load_words4({at} / 8u); return V({vectors});"
        return f"fn {name}_unit({arguments}, i: u32) -> V {{ {load} }}"


def few_launch(p: AttentionProblem, chosen: Few, partials: int, target: Target) -> Launch:
    """Grid: parts of the keys, blocks of queries of each head of keys, batches."""
    batch, groups = p.k.shape[:2]
    draft = Draft(QUERY)
    constants = {
        "THREADS": chosen.threads,
        "LANES": chosen.lanes,
        "SLOTS": chosen.slots,
        "SHARED": p.shared,
        "TILE": chosen.tile,
        "UNITS": chosen.units,
        "VALUE_UNITS": chosen.values,
        "PART": chosen.part,
        "PARTS": chosen.parts,
        "SUMS": chosen.sums,
    }
    draft.add(*(constant(name, value) for name, value in constants.items()))
    unit = Unit(chosen.size)
    draft.add(*unit.declarations, unit.keep("PARTS * VALUE_UNITS"), *unit.queries())
    for arg, (name, spec, names) in enumerate((("q", p.q, QUERY), ("k", p.k, KEY), ("v", p.v, KEY))):
        draft.binding(Binding(name, spec.dtype), arg)
        draft.add(place(draft.params, name, arg, spec, names), unit.reader(name, spec.dtype, names, target))
    for name, value in (("keys", p.keys), ("chunk", chosen.chunk), ("blocks", chosen.blocks)):
        draft.param(name, value)
    draft.param("scale", p.attention.scale, "f32")
    draft.add(*output_row(p, draft.params), *visibility(p, draft))
    if chosen.splits == 1:
        declare_result(draft, p, target)
        draft.add(FINISH)
    else:
        draft.binding(Binding("partials", "f32", "read_write"), partials)
        draft.param("totals", p.count * chosen.splits * p.v.shape[3])
        draft.add(FINISH_PART)
    f = p.attention.function
    leaves_out = (
        f is not None and f.block is not None and not max(f.block[1], chosen.tile) % min(f.block[1], chosen.tile)
    )
    body = render("attention/attention_few", p=p, leaves_out=leaves_out, few=chosen)
    return draft.build("attention_few", [body], chosen.threads, (chosen.splits, groups * chosen.blocks, batch))


def declare_result(draft: Draft, p: AttentionProblem, target: Target) -> None:
    """The results as ``y`` and ``lse``."""
    draft.binding(Binding("y", p.y.dtype, "read_write", store_mode(p.y, "strided", target.float16)), p.result)
    draft.binding(Binding("lse", "f32", "read_write"), p.result + 1)
    draft.param("lse_offset", Source("offset", p.result + 1))
    draft.add(place(draft.params, "y", p.result, p.y, QUERY))


def combine_launch(p: AttentionProblem, splits: int, partials: int, target: Target) -> Launch:
    """Grid: queries of all heads, batches."""
    batch, heads, queries, _ = p.q.shape
    draft = Draft(QUERY)
    width = p.v.shape[3]
    size = 1 if width % 4 else 4
    units = width // size
    line = power_of_two(units)
    groups = min(MOST_VALUES // line, power_of_two(splits))
    constants = {"THREADS": groups * line, "LINE": line, "GROUPS": groups, "VALUE_UNITS": units}
    draft.add(*(constant(name, value) for name, value in constants.items()))
    draft.add(*Unit(size).declarations, Unit(size).keep("THREADS"))
    draft.binding(Binding("partials", "f32"), partials)
    draft.add(f"fn partials_unit(i: u32) -> V {{ return partials_load{'' if size == 1 else '4'}(i); }}")
    draft.param("splits", splits)
    draft.param("totals", p.count * splits * width)
    draft.add(*output_row(p, draft.params))
    declare_result(draft, p, target)
    body = wgsl_source("attention/attention_combine")
    return draft.build("attention_combine", [body], groups * line, (heads * queries, batch, 1))
