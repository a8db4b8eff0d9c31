"""What kernels of attention over tiles of scores have in common: their arguments, which scores count, and how blocks
of them are numbered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft, constant, wgsl_source
from torch_webgpu.kernels.template import render
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import store_mode
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Source

from .attention import QUERY, Attention, AttentionProblem, operands_of, output_row, place, visibility
from .score_function import BLOCKS, SEEN, Scope

LINE = ("b", "head", "line", "e")
HEAD, QUERY_ROW, KEY_ROW = frozenset({0, 1}), frozenset({0, 1, 2}), frozenset({0, 1, 3})
"""Coordinates of scores."""
Declare = Callable[[Draft, str, int, Spec], None]
"""Gives a kernel operand ``name``, which is argument ``arg``."""


@dataclass(frozen=True)
class Flash(AttentionProblem):
    """With dropout. ``grad``: the layout of the result's gradient, where gradients are computed; ``results``: those of
    what is computed; ``args``: how many arguments there are.
    """

    dropout_p: float
    grad: Spec | None
    results: tuple[Spec, ...]
    args: int

    @property
    def operands(self) -> int:
        """How many arguments say what attention is computed of."""
        return self.attention.operands + 2 * (self.dropout_p > 0)

    @property
    def multiplied(self) -> list[tuple[str, int, Spec]]:
        """The names, arguments and layouts of what products are made of."""
        operands = [("q", 0, self.q), ("k", 1, self.k), ("v", 2, self.v)]
        return operands if self.grad is None else [*operands, ("g", self.operands, self.grad)]

    @property
    def changes_scores(self) -> bool:
        """Whether a function makes something of each score."""
        return self.attention.function is not None and self.attention.function.score is not None

    @property
    def has_slope(self) -> bool:
        """Whether the gradient of a score is not that of what a function makes of it."""
        return self.attention.function is not None and self.attention.function.slope is not None

    def is_whole(self, queries: int, keys: int) -> str:
        """A condition: all queries of the block from ``first_query`` see all keys of the block from ``first_key``.
        Most do, and no position is looked at.
        """
        f = self.attention.function
        if self.mask is not None:
            return "false"
        whole = f"first_query + {queries}u <= P.queries && first_key + {keys}u <= P.keys"
        if self.attention.causal:
            whole += f" && first_key + {keys}u <= first_query + 1u"
        if f is None or (f.is_seen is None and (f.block is None or self.in_blocks(queries, keys))):
            return whole
        return (
            f"{whole} && kind_of(b, h, first_query, first_key) == {SEEN}" if self.in_blocks(queries, keys) else "false"
        )

    def in_blocks(self, queries: int, keys: int) -> bool:
        """Whether a block of so many queries and keys is part of one of a mask's."""
        scores = self.attention.function
        return scores is not None and scores.divides(queries, keys)

    @property
    def descends(self) -> bool:
        """Whether the forward visits blocks of keys from the last to the first. What functions add to scores mostly
        favours late keys: there the greatest scores come first then, and sums are not rescaled block by block.
        """
        return self.grad is None and self.changes_scores

    def first_key(self, queries: int, keys: int) -> str:
        """The first block of keys that a block of queries visits."""
        start = f"(end - 1u) / {keys}u * {keys}u" if self.descends else "0u"
        return self.next_block(start, "key", queries, keys)

    def next_key(self, queries: int, keys: int) -> str:
        """The block of keys after that from ``first_key`` on."""
        return self.next_block(f"first_key {'-' if self.descends else '+'} {keys}u", "key", queries, keys)

    def next_block(self, first: str, name: str, queries: int, keys: int) -> str:
        """The first block of keys ("key") or queries ("query") from ``first`` on, with which there are scores that
        count: others of a mask of blocks are left out. There is none where it is no block's first.
        """
        if not self.in_blocks(queries, keys):
            return first
        return f"next_{name}(b, h, {'first_query' if name == 'key' else 'first_key'}, {first})"


def problem(op: Operation, attention: Attention, dropout_p: float, has_grad: bool = False) -> Flash:
    operands, grad = operands_of(op, attention), op.inputs[-3] if has_grad else None
    return Flash(attention, *operands, op.outputs[0], dropout_p, grad, op.outputs, len(op.args))


def units_of(spec: Spec) -> int:
    """Of four numbers, in a line."""
    return -(-spec.shape[3] // 4)


def result(draft: Draft, name: str, arg: int, spec: Spec, count: str, target: Target) -> None:
    """Declares ``<name>_put``, which stores a unit of a line if there is one; there are ``count`` lines."""
    width = spec.shape[3]
    if in_groups(spec, 3):
        draft.binding(Binding(name, spec.dtype, "read_write"), arg)
        store = f"{name}_store4({name}_at(b, head, line, 4u * i) / 4u, v);"
    else:
        draft.binding(Binding(name, spec.dtype, "read_write", store_mode(spec, "strided", target.float16)), arg)
        store = "\n".join(
            f"  if (4u * i + {e}u < {width}u) {{ {name}_store({name}_at(b, head, line, 4u * i + {e}u), v.{c}); }}"
            for e, c in enumerate("xyzw")
        )
    draft.add(
        place(draft.params, name, arg, spec, LINE),
        f"fn {name}_put(b: u32, head: u32, line: u32, i: u32, v: vec4<f32>) {{",
        f"  if (line >= {count} || i >= {units_of(spec)}u) {{ return; }}",
        store,
        "}",
    )


def next_block_text(name: str, step: int, descends: bool) -> str:
    """``next_key`` of a block of queries, or ``next_query`` of one of keys: see :meth:`Flash.next_block`. Below zero
    there are the highest numbers, where no block is.
    """
    other, count = ("l", "keys") if name == "key" else ("s", "queries")
    if descends:  # the kinds of this block, and of those before
        kinds, seen = f"kinds << (2u * ({BLOCKS - 1}u - place))", "rest >> 30u"
        word, block = "(block - place) * BLOCK", "(block - countLeadingZeros(rest) / 2u + 1u) * BLOCK"
        word, block = f"{word} - {step}u", f"{block} - {step}u"
    else:
        kinds, seen = "kinds >> (2u * place)", "rest & 3u"
        word, block = f"(block - place + {BLOCKS}u) * BLOCK", "(block + countTrailingZeros(rest) / 2u) * BLOCK"
    return f"""
fn next_{name}(b: u32, h: u32, {other}: u32, first: u32) -> u32 {{
  var at = first;
  while (at < P.{count}) {{
    let block = at / BLOCK;
    let place = block % {BLOCKS}u;
    let kinds = kinds_of(b, h, {other}, block);
    let rest = {kinds};
    if (({seen}) != 0u) {{ break; }}
    at = select({block}, {word}, rest == 0u);
  }}
  return at;
}}"""


def begin(p: Flash, declare: Declare, scope: Scope) -> Draft:
    """A kernel over what is multiplied, which ``declare`` gives it, that knows which scores count.

    The function that says so is inlined for every score of a thread. With ``&&`` in it, which branches, SwiftShader's
    compiler, Chromium's where there is no GPU, took over 10 GB.
    """
    draft = Draft(QUERY)
    for name, arg, spec in p.multiplied:
        declare(draft, name, arg, spec)
    for name, value in (("queries", p.q.shape[2]), ("keys", p.k.shape[2])):
        draft.param(name, value)
    draft.param("scale", p.attention.scale, "f32")
    draft.add(
        *output_row(p, draft.params),
        *visibility(p, draft, scope),
        wgsl_source("attention/flash_scores"),
        *([render("attention/flash_changes", has_slope=p.has_slope)] if p.changes_scores else ()),
        constant("SHARED", p.shared),
    )
    if p.dropout_p:
        for k, name in enumerate(("seed", "place")):
            arg = p.operands - 2 + k
            draft.binding(Binding(name, "i64"), arg)
            draft.param(f"{name}_offset", Source("offset", arg))
        draft.param("kept", 1 - p.dropout_p, "f32")
        draft.param("factor", 1 / (1 - p.dropout_p), "f32")
        draft.add(wgsl_source("attention/flash_dropout"))
    return draft


def forward_draft(p: Flash, target: Target, declare: Declare, scope: Scope) -> Draft:
    """A kernel over the arguments and results of :func:`.flash.forward`."""
    draft = begin(p, declare, scope)
    result(draft, "y", p.operands, p.results[0], "P.queries", target)
    draft.binding(Binding("lse", "f32", "read_write"), p.operands + 1)
    draft.param("lse_offset", Source("offset", p.operands + 1))
    return draft


def query_draft(p: Flash, target: Target, declare: Declare, scope: Scope) -> Draft:
    """A kernel over the arguments and the result of :func:`.flash.query_gradient`."""
    draft = backward_draft(p, declare, scope)
    result(draft, "y", p.operands + 3, p.results[0], "P.queries", target)
    return draft


def key_draft(p: Flash, target: Target, declare: Declare, scope: Scope) -> Draft:
    """A kernel over the arguments and results of :func:`.flash.key_gradients`."""
    draft = backward_draft(p, declare, scope)
    for k, name in enumerate(("dk", "dv")):
        result(draft, name, p.operands + 3 + k, p.results[k], "P.keys", target)
    return draft


def backward_draft(p: Flash, declare: Declare, scope: Scope) -> Draft:
    """A kernel over the arguments of :func:`.flash.query_gradient`."""
    draft = begin(p, declare, scope)
    for k, name in enumerate(("lse", "delta"), p.operands + 1):
        draft.binding(Binding(name, "f32"), k)
        draft.param(f"{name}_offset", Source("offset", k))
    draft.add(wgsl_source("attention/flash_backward"))
    return draft


class FlashKernel(NamedTuple):
    """A kernel over blocks of scores: what it is called in profiles and its template, of that in registers, how it
    begins, and the operand whose lines are its blocks' rows.
    """

    name: str
    template: str
    begin: Callable[[Flash, Target, Declare, Scope], Draft]
    rows: str

    def draft(
        self, p: Flash, rows: int, columns: int, target: Target, declare: Declare, has_one_row: bool
    ) -> tuple[Draft, tuple[int, int, int]]:
        """Over ``p``, with its grid: blocks of so many rows, heads, batches. ``has_one_row``: whether a thread has
        scores of one row.
        """
        in_blocks = p.in_blocks(rows, columns) if self.rows == "q" else p.in_blocks(columns, rows)
        fixed = HEAD if not has_one_row else QUERY_ROW if self.rows == "q" else KEY_ROW
        draft = self.begin(p, target, declare, Scope(in_blocks, fixed, of_keys=self.rows == "k"))
        if in_blocks:
            draft.add(next_block_text("key" if self.rows == "q" else "query", columns, p.descends))
        lines: Spec = getattr(p, self.rows)
        batches, heads, length, _ = lines.shape
        blocks = -(-length // rows)
        draft.param("blocks", blocks)
        return draft, (blocks, heads, batches)


KERNELS = {
    "forward": FlashKernel("flash_attention", "forward", forward_draft, "q"),
    "query": FlashKernel("flash_attention_query", "backward_query", query_draft, "q"),
    "key": FlashKernel("flash_attention_key", "backward_key", key_draft, "k"),
}
