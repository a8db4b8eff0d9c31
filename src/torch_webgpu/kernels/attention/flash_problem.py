"""What kernels of attention over tiles of scores have in common: their arguments, which scores count, and how blocks
of them are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_webgpu.ir.operation import Operation, Spec
from torch_webgpu.kernels.matmul.operand import in_groups
from torch_webgpu.kernels.points import Draft, constant, wgsl_source
from torch_webgpu.target import Target
from torch_webgpu.wgsl.builder import store_mode
from torch_webgpu.wgsl.kernel import Binding
from torch_webgpu.wgsl.launch import Source

from .attention import QUERY, Attention, Problem, output_row, place, visibility

LINE = ("b", "head", "line", "e")
Declare = Callable[[Draft, str, int, Spec], None]
"""Gives a kernel operand ``name``, which is argument ``arg``."""


@dataclass(frozen=True)
class Flash(Problem):
    """With dropout."""

    dropout_p: float = 0.0

    @property
    def operands(self) -> int:
        """How many arguments say what attention is computed of."""
        return 3 + self.attention.masked + 2 * (self.dropout_p > 0)


def problem(op: Operation, attention: Attention, dropout_p: float, y: Spec) -> Flash:
    q, k, v, *rest = op.inputs
    return Flash(attention, q, k, v, rest[0] if attention.masked else None, y, dropout_p)


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


SEEN = """
fn score_of(b: u32, h: u32, l: u32, s: u32, score: f32) -> f32 {
  let query = min(l, P.queries - 1u);
  let key = min(s, P.keys - 1u);
  let counts = l < P.queries && s < P.keys && is_visible(b, h, query, key);
  return select(-inf_f(), biased(b, h, query, key, score), counts);
}
// Scores of a query with four keys, and of a key with four queries.
fn scores_along(b: u32, h: u32, l: u32, s: u32, v: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(score_of(b, h, l, s, v.x), score_of(b, h, l, s + 1u, v.y), score_of(b, h, l, s + 2u, v.z),
    score_of(b, h, l, s + 3u, v.w));
}
fn scores_down(b: u32, h: u32, l: u32, s: u32, v: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(score_of(b, h, l, s, v.x), score_of(b, h, l + 1u, s, v.y), score_of(b, h, l + 2u, s, v.z),
    score_of(b, h, l + 3u, s, v.w));
}
"""
"""The scores that count, minus infinity for those that do not: positions may lie outside."""


def begin(p: Flash, declare: Declare, others: Sequence[tuple[str, int, Spec]] = ()) -> Draft:
    """A kernel over q, k, v and ``others``, which ``declare`` gives it, that knows which scores count."""
    draft = Draft(QUERY)
    for name, arg, spec in (("q", 0, p.q), ("k", 1, p.k), ("v", 2, p.v), *others):
        declare(draft, name, arg, spec)
    for name, value in (("queries", p.q.shape[2]), ("keys", p.k.shape[2])):
        draft.param(name, value)
    draft.param("scale", p.attention.scale, "f32")
    draft.add(*output_row(p, draft.params), *visibility(p, draft), SEEN, constant("SHARED", p.shared))
    if p.dropout_p:
        for k, name in enumerate(("seed", "place")):
            arg = p.operands - 2 + k
            draft.binding(Binding(name, "i64"), arg)
            draft.param(f"{name}_offset", Source("offset", arg))
        draft.param("kept", 1 - p.dropout_p, "f32")
        draft.param("factor", 1 / (1 - p.dropout_p), "f32")
        draft.add(wgsl_source("attention/flash_dropout"))
    return draft


def forward_draft(p: Flash, target: Target, declare: Declare) -> Draft:
    """A kernel over the arguments and results of :func:`.flash.forward`."""
    draft = begin(p, declare)
    result(draft, "y", p.operands, p.y, "P.queries", target)
    draft.binding(Binding("lse", "f32", "read_write"), p.operands + 1)
    draft.param("lse_offset", Source("offset", p.operands + 1))
    return draft


def backward_draft(p: Flash, grad: Spec, declare: Declare) -> tuple[Draft, int]:
    """A kernel over the arguments of :func:`.flash.query_gradient`, and how many these are."""
    n = p.operands
    draft = begin(p, declare, [("g", n, grad)])
    for k, name in enumerate(("lse", "delta")):
        draft.binding(Binding(name, "f32"), n + 1 + k)
        draft.param(f"{name}_offset", Source("offset", n + 1 + k))
    at = "output_row(b, h, min(l, P.queries - 1u))"
    draft.add(
        f"fn lse_of(b: u32, h: u32, l: u32) -> f32 {{ return lse_load(P.lse_offset + {at}); }}",
        f"fn delta_of(b: u32, h: u32, l: u32) -> f32 {{ return delta_load(P.delta_offset + {at}); }}",
    )
    return draft, n + 3


def blocks_of(draft: Draft, rows: int, lines: int) -> int:
    blocks = -(-lines // rows)
    draft.param("blocks", blocks)
    return blocks


def block_of_queries(p: Flash, rows: int) -> list[str]:
    """Statements that say which block of queries a workgroup computes, and where the keys end that it sees. The blocks
    that see most are the first to start.
    """
    causal = p.attention.causal
    return [
        "  let h = wid.y;",
        "  let head = h / SHARED;",
        f"  let l0 = {'(P.blocks - 1u - wid.x)' if causal else 'wid.x'} * {rows}u;",
        f"  let end = {f'min(P.keys, l0 + {rows}u)' if causal else 'P.keys'};",
    ]


def is_whole(p: Flash, queries: int, keys: int) -> str:
    """Whether all queries of the block from ``l0`` see all keys of the block from ``s0``, and nothing is added: most
    do, and no position is looked at.
    """
    if p.mask is not None:
        return "false"
    whole = f"l0 + {queries}u <= P.queries && s0 + {keys}u <= P.keys"
    return f"{whole} && s0 + {keys}u <= l0 + 1u" if p.attention.causal else whole
