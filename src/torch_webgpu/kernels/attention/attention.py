"""Scaled dot product attention: ``softmax(scale * q @ kᵀ + mask) @ v`` without the matrix of scores.

q (B, H, L, E), k (B, G, S, E) and v (B, G, S, D) where G divides H: query head h reads head h // (H / G) of keys and
values. Any strides. Scores, weights and sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.points import Draft, constant, locator
from torch_webgpu.layout import broadcast_strides
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import ParamList

from .score_function import FEW, PARTLY, SEEN, Scope, ScoreFunction

HIGHEST = 3.4028234663852886e38
"""The greatest float32."""

QUERY = ("b", "h", "l", "e")
KEY = ("b", "g", "s", "e")
SCORE = ("b", "h", "l", "s")


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


def still(spec: Spec, names: tuple[str, ...]) -> frozenset[str]:
    """The coordinates that do not move an element's place."""
    parts = zip(names, spec.shape, spec.strides, strict=True)
    return frozenset(c for c, size, stride in parts if size == 1 or stride == 0)


def place(params: ParamList, name: str, arg: int, spec: Spec, names: tuple[str, ...]) -> str:
    return locator(params, name, arg, names, spec.strides, still(spec, names), names[-1:])


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


def operands_of(op: Operation, a: Attention) -> tuple[Spec, Spec, Spec, Spec | None, tuple[Spec, ...]]:
    """The layouts of q, k, v, the mask if there is one, and what a function of scores reads."""
    q, k, v, *rest = op.inputs[: a.operands]
    return (q, k, v, rest[0], tuple(rest[1:])) if a.masked else (q, k, v, None, tuple(rest))
