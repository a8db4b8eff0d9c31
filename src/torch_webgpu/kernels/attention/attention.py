"""Scaled dot product attention: ``softmax(scale * q @ kᵀ + mask) @ v`` without the matrix of scores.

q (B, H, L, E), k (B, G, S, E) and v (B, G, S, D) where G divides H: query head h reads head h // (H / G) of keys and
values. Any strides. Scores, weights and sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft, PointKernel, constant, locator, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import store_mode
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import MAX_GROUPS, Launch, Lowered, ParamList, Source

from .score_function import FEW, PARTLY, SEEN, Scope, ScoreFunction

THREADS = 256
LANES = 8
SLOTS = THREADS // LANES
MOST_ROWS = 8
"""Queries that share what a workgroup reads of keys and values."""
QUERY_NUMBERS = 1024
"""As many numbers of queries as a workgroup keeps: with the rest it needs, 16 KiB."""
BUSY_GROUPS = 264
"""Workgroups that occupy a large GPU twice over; keys are split to reach it."""
BUSY_GROUPS_SOFTWARE = 8
MIN_STEPS = 2
"""Steps of a workgroup that are worth a second launch."""

HIGHEST = 3.4028234663852886e38
"""The greatest float32."""

QUERY = ("b", "h", "l", "e")
KEY = ("b", "g", "s", "e")
SCORE = ("b", "h", "l", "s")

VALUE = "part: u32, b: u32, h: u32, l: u32, e: u32, value: f32, total: f32"
FINISH = f"""
fn finish_query(part: u32, most: f32, total: f32) {{ lse_store(P.lse_offset + part, logsumexp(most, total)); }}
fn finish_value({VALUE}) {{ y_store(y_at(b, h, l, e), weighted(value, total)); }}"""
FINISH_PART = f"""
fn finish_query(part: u32, most: f32, total: f32) {{
  partials_store(part * (VALUES + 2u), most);
  partials_store(part * (VALUES + 2u) + 1u, total);
}}
fn finish_value({VALUE}) {{ partials_store(part * (VALUES + 2u) + 2u + e, value); }}"""


@dataclass(frozen=True)
class Rules:
    """What a mask means, and what a query gets that sees nothing.

    ``hides``: booleans are true where a key is hidden, not where it is seen. ``fill``: the score of a hidden key; with
    a finite one a query sees all keys alike if all are hidden. ``rounded``: the dtype that scores have with a mask of
    numbers added. ``zeros``: a query that sees nothing gets zeros, not NaN. ``stored``: the dtype of products of query
    and key on roads that keep them.
    """

    hides: bool = False
    fill: float = float("-inf")
    rounded: str = "f32"
    zeros: bool = True
    stored: str = "f32"


PYTORCH = Rules()
"""Those of PyTorch's operator."""


@dataclass(frozen=True)
class Attention:
    """``causal``: query l sees keys 0 to l. ``masked``: there is a mask, which broadcasts to (B, H, L, S): of booleans,
    true where a key is seen, or of numbers that are added to the scores. ``function``: what becomes of scores then.
    """

    scale: float
    causal: bool
    masked: bool
    rules: Rules = PYTORCH
    function: ScoreFunction | None = None

    @property
    def operands(self) -> int:
        """How many arguments say what attention is computed of, before what dropout needs."""
        return 3 + self.masked + (self.function.operands if self.function else 0)


def extern(a: Attention) -> Extern:
    """Arguments: q, k, v, the mask if there is one, what a function of scores reads → (B, H, L, D), and
    log(sum(exp(scores))) of each query as dense float32 (B, H, L), which is the highest float32 for a query that sees
    nothing.
    """
    return Extern(lower_few, (a,))


def fits(batch: int, heads: int, queries: int, width: int, value_width: int) -> bool:
    """Whether the kernel computes this."""
    in_memory = 0 < width <= QUERY_NUMBERS and 0 < value_width <= THREADS
    return in_memory and heads * queries <= MAX_GROUPS and batch <= MAX_GROUPS


@dataclass(frozen=True)
class AttentionProblem:
    """The layouts of one operation's arguments."""

    attention: Attention
    q: Spec
    k: Spec
    v: Spec
    mask: Spec | None
    read: tuple[Spec, ...]
    y: Spec

    @property
    def shared(self) -> int:
        """Query heads that read one head of keys."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def keys(self) -> int:
        """How many keys any query sees."""
        _, _, queries, _ = self.q.shape
        return min(self.k.shape[2], queries) if self.attention.causal else self.k.shape[2]

    @property
    def result(self) -> int:
        """The place of y among the arguments."""
        return self.attention.operands

    @property
    def count(self) -> int:
        """Queries of all batches and heads."""
        b, h, queries, _ = self.q.shape
        return b * h * queries


@dataclass(frozen=True)
class Few:
    """How few queries are computed: ``rows`` of those that share keys by each workgroup, in ``blocks``; the keys in
    ``splits`` parts of ``chunk``.
    """

    rows: int
    blocks: int
    splits: int
    chunk: int

    @property
    def at_once(self) -> int:
        """Keys that a thread scores in a step: a power of two."""
        return 1 << (MOST_ROWS // self.rows).bit_length() - 1

    @property
    def tile(self) -> int:
        return SLOTS * self.at_once


def few(p: AttentionProblem, software: bool) -> Few:
    batch, groups, _, width = p.k.shape
    sharing = p.shared * p.q.shape[2]
    most = min(MOST_ROWS, QUERY_NUMBERS // width)
    blocks = -(-sharing // most)
    rows = -(-sharing // blocks)
    tile = Few(rows, blocks, 1, 0).tile
    steps = -(-p.keys // tile)
    busy = BUSY_GROUPS_SOFTWARE if software else BUSY_GROUPS
    splits = min(-(-busy // (batch * groups * blocks)), -(-steps // MIN_STEPS))
    chunk = -(-steps // splits) * tile
    return Few(rows, blocks, -(-p.keys // chunk), chunk)


def lower_few(op: Operation, alias: tuple[int, ...], target: Target, attention: Attention) -> Lowered:
    y, _ = op.outputs
    p = AttentionProblem(attention, *operands_of(op, attention), y)
    chosen, n = few(p, target.software), len(op.args)
    first = few_launch(p, chosen, n, target)
    if chosen.splits == 1:
        return Lowered((first,))
    size = p.count * chosen.splits * (p.v.shape[3] + 2) * 4
    return Lowered((first, combine_launch(p, chosen.splits, n, target)), (size,))


def still(spec: Spec, names: tuple[str, ...]) -> frozenset[str]:
    """The coordinates that do not move an element's place."""
    parts = zip(names, spec.shape, spec.strides, strict=True)
    return frozenset(c for c, size, stride in parts if size == 1 or stride == 0)


def place(params: ParamList, name: str, arg: int, spec: Spec, names: tuple[str, ...]) -> str:
    return locator(params, name, arg, names, spec.strides, still(spec, names), names[-1:])


def vectors(*specs: Spec) -> bool:
    """Whether the innermost dimension of all is read in fours."""
    return all(BY_NAME[s.dtype].itemsize <= 4 and in_groups(s, 3) for s in specs)


def reader(name: str, names: tuple[str, ...], together: bool) -> str:
    """``<name>_unit``: the numbers of unit ``i`` along the innermost dimension."""
    *outer, _ = names
    arguments = ", ".join(f"{c}: u32" for c in outer)
    at = f"{name}_at({', '.join(outer)}, {'4u * i' if together else 'i'})"
    load = f"{name}_load4({at} / 4u)" if together else f"{name}_load({at})"
    return f"fn {name}_unit({arguments}, i: u32) -> V {{ return {load}; }}"


def output_row(p: AttentionProblem, params: ParamList) -> list[str]:
    """WGSL that the dense results are stored with."""
    _, h, queries, _ = p.q.shape
    length = params.add("queries", queries) if queries > 1 else "1u"
    sizes = f"(b * {h}u + h) * {length} + l"
    return [
        f"fn length() -> u32 {{ return {length}; }}",
        f"fn output_row(b: u32, h: u32, l: u32) -> u32 {{ return {sizes}; }}",
        "const HIGHEST = 3.4028234e38;",
        "fn logsumexp(most: f32, total: f32) -> f32 { return select(most + log(total), HIGHEST, total == 0.0); }",
        "fn weighted(value: f32, total: f32) -> f32 "
        f"{{ return select(value / total, {'0.0' if p.attention.rules.zeros else 'nan_f()'}, total == 0.0); }}",
        constant("VALUES", p.v.shape[3]),
    ]


def visibility(p: AttentionProblem, draft: Draft, scope: Scope = FEW) -> list[str]:
    """``is_visible`` and ``biased``: which scores count, and what becomes of them. The mask is argument 3."""
    names = "b: u32, h: u32, l: u32, s: u32"
    conditions, score, rules = ["(s <= l)"] if p.attention.causal else [], "score", p.attention.rules
    text = []
    shape = (*p.q.shape[:3], p.k.shape[2])
    if p.mask is not None:
        mask = p.mask._replace(shape=shape, strides=broadcast_strides(p.mask.shape, p.mask.strides, shape))
        draft.binding(Binding("mask", mask.dtype), 3)
        text.append(place(draft.params, "mask", 3, mask, SCORE))
        value = "mask_load(mask_at(b, h, l, s))"
        if mask.dtype != "bool":
            score = rounded(f"score + {value}", rules.rounded)
        elif isinf(rules.fill):
            conditions.append(f"({value} != {str(rules.hides).lower()})")
        else:
            draft.param("fill", rules.fill, "f32")
            score = f"select(score, P.fill, {value} == {str(rules.hides).lower()})"
    if (scores := p.attention.function) is not None:
        text += scores.text(draft, 3 + p.attention.masked, p.read, shape, scope)
        score = f"changed_score(b, h, l, s, {score}){'' if scores.slope is None else '.x'}"
        conditions.append("is_seen(b, h, l, s)")
        if scores.block is not None and not scope.in_blocks:
            kind = "kind_of(b, h, l, s)"
            conditions[-1] = f"(({kind} == {SEEN}) | (({kind} == {PARTLY}) & {conditions[-1]}))"
    return [
        *text,
        f"fn is_visible({names}) -> bool {{ return {' & '.join(conditions) or 'true'}; }}",
        f"fn biased({names}, score: f32) -> f32 {{ return {score}; }}",
    ]


def rounded(value: str, dtype: str) -> str:
    return value if dtype == "f32" else f"round_{dtype}({value})"


def units(draft: Draft, together: bool) -> None:
    """``V``, ``WIDTH``, ``product`` and ``keep`` for units of four numbers or of one."""
    product, parts = ("dot(a, b)", [f".{c}" for c in "xyzw"]) if together else ("a * b", [""])
    stores = " ".join(f"sums[{c}u * THREADS + lid] = v{part};" for c, part in enumerate(parts))
    draft.add(
        f"alias V = {'vec4<f32>' if together else 'f32'};",
        constant("WIDTH", len(parts)),
        f"fn product(a: V, b: V) -> f32 {{ return {product}; }}",
        f"fn keep(lid: u32, v: V) {{ {stores} }}",
    )


def operands_of(op: Operation, a: Attention) -> tuple[Spec, Spec, Spec, Spec | None, tuple[Spec, ...]]:
    """The layouts of q, k, v, the mask if there is one, and what a function of scores reads."""
    q, k, v, *rest = op.inputs[: a.operands]
    return (q, k, v, rest[0], tuple(rest[1:])) if a.masked else (q, k, v, None, tuple(rest))


def few_launch(p: AttentionProblem, chosen: Few, partials: int, target: Target) -> Launch:
    """Grid: parts of the keys, blocks of queries of each head of keys, batches."""
    batch, groups, _, width = p.k.shape
    together = vectors(p.q, p.k, p.v)
    size = 4 if together else 1
    draft = Draft(QUERY)
    value_units = p.v.shape[3] // size
    line = 1 << (value_units - 1).bit_length()
    constants = {
        "THREADS": THREADS,
        "LANES": LANES,
        "SLOTS": SLOTS,
        "ROWS": chosen.rows,
        "SHARED": p.shared,
        "TILE": chosen.tile,
        "UNITS": width // size,
        "VALUE_UNITS": value_units,
        "LINE": line,
        "GROUPS": THREADS // line,
    }
    draft.add(*(constant(name, value) for name, value in constants.items()))
    units(draft, together)
    for arg, (name, spec, names) in enumerate((("q", p.q, QUERY), ("k", p.k, KEY), ("v", p.v, KEY))):
        draft.binding(Binding(name, spec.dtype), arg)
        draft.add(place(draft.params, name, arg, spec, names), reader(name, names, together))
    for name, value in (("keys", p.keys), ("chunk", chosen.chunk), ("blocks", chosen.blocks)):
        draft.param(name, value)
    draft.param("scale", p.attention.scale, "f32")
    draft.add(*output_row(p, draft.params), *visibility(p, draft))
    if chosen.splits == 1:
        draft.binding(Binding("y", p.y.dtype, "read_write", store_mode(p.y, "strided", target.float16)), p.result)
        lse(draft, p.result + 1)
        draft.add(place(draft.params, "y", p.result, p.y, QUERY), FINISH)
    else:
        draft.binding(Binding("partials", "f32", "read_write"), partials)
        draft.add(FINISH_PART)
    f = p.attention.function
    leaves_out = (
        f is not None and f.block is not None and not max(f.block[1], chosen.tile) % min(f.block[1], chosen.tile)
    )
    body = render("attention/attention_few", p=p, leaves_out=leaves_out, rows=chosen.rows, at_once=chosen.at_once)
    return draft.build("attention_few", [body], THREADS, (chosen.splits, groups * chosen.blocks, batch))


def lse(draft: Draft, arg: int) -> None:
    draft.binding(Binding("lse", "f32", "read_write"), arg)
    draft.param("lse_offset", Source("offset", arg))


def combine_launch(p: AttentionProblem, splits: int, partials: int, target: Target) -> Launch:
    kernel = PointKernel("attention_combine", target, QUERY, still(p.y, QUERY))
    kernel.binding(Binding("partials", "f32"), partials)
    lse(kernel, p.result + 1)
    kernel.param("splits", splits)
    kernel.add(*output_row(p, kernel.params))
    kernel.output("y", p.result, p.y)
    return kernel.launch(wgsl_source("attention/attention_combine"))
