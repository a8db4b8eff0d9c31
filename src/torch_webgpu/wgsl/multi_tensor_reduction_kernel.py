"""Kernels that reduce each tensor of a list to one number, and that collect such numbers.

A workgroup takes one piece of one tensor, which it finds by comparing its number with the tensors' first workgroups, as
in :mod:`.multi_tensor_kernel`, and leaves a partial result; a second kernel, a workgroup per tensor, merges them.
Elements are read in fours from where fours begin in the buffer, wherever the tensor does; what lies outside
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch_webgpu.ir.combine import COMBINES
from torch_webgpu.ir.expr import Expr, walk

from .expr import compute_type, convert, emit, emit_stored, function, scalar_function
from .fold import tree
from .indexing import GROUPS, LANES, QUAD
from .kernel import Binding
from .launch import WORKGROUP, Launch, ParamList, Source
from .multi_tensor_kernel import find_own, switch

UNROLL = 4


@dataclass(frozen=True)
class ListReduction:
    """``result`` of all elements' ``contribution``, merged by a combine of a single scalar.

    Leaves: ``acc x`` is an element, in ``state`` (a dtype that partial results lie in, of the same compute kind as
    ``dtype``), or what the elements came to; ``param k`` is f32 scalar ``k``.
    """

    name: str
    dtype: str
    state: str
    combine: str
    contribution: Expr
    result: Expr
    out: str

    @property
    def type(self) -> str:
        return compute_type(self.state)

    @cached_property
    def functions(self) -> list[str]:
        """``identity``, ``merge`` and ``share``, the tree over a workgroup."""
        combine = COMBINES[self.combine]
        a, b = (Expr("acc", (side,), self.state) for side in "ab")
        (merged,) = combine.merge((a,), (b,))
        _, (nothing,) = emit(list(combine.identity(self.state)), leaf)
        t = self.type
        return [
            f"var<workgroup> states: array<{t}, {WORKGROUP}>;",
            f"fn identity() -> {t} {{ return {nothing}; }}",
            *scalar_function("merge", merged, a, b),
            *(f"fn share(lid: u32, v: {t}) {{", "  states[lid] = v;", *tree(WORKGROUP), "}"),
        ]


def leaf(e: Expr) -> str:
    return f"P.s{e.args[0]}" if e.op == "param" else e.args[0]


def scalars(e: Expr) -> ParamList:
    """Parameters for the scalars that an expression uses."""
    params = ParamList()
    for k in sorted({x.args[0] for x in walk((e,)) if x.op == "param"}):
        params.add(f"s{k}", Source("scalar", k), "f32")
    return params


class Work(NamedTuple):
    """How tensors are divided among workgroups: ``piece`` elements for one, ``groups`` for each tensor, and the number
    of each tensor's first.
    """

    piece: int
    groups: Sequence[int]
    firsts: Sequence[int]


def build_partials(reduction: ListReduction, tensors: range, sizes: Sequence[int], work: Work, states: int) -> Launch:
    """Leaves a state for each workgroup of ``tensors``, arguments of these ``sizes``, in the binding ``states``."""
    params, count, first = scalars(reduction.contribution), len(tensors), work.firsts[tensors[0]]
    groups = sum(work.groups[k] for k in tensors)
    for name, number in (("first", first), ("chunk", work.piece // QUAD), ("groups", groups)):
        params.add(name, number)
    for j, k in enumerate(tensors):
        params.add(f"offset_{j}", Source("offset", k))
        params.add(f"size_{j}", sizes[k])
        if j:
            params.add(f"start_{j}", work.firsts[k] - first)
    t, dtype = reduction.type, reduction.dtype
    kind = compute_type(dtype)
    element = Expr("acc", ("x",), reduction.state)
    loads = switch(f"load(own: u32, at: u32) -> vec4<{kind}>", [f"return x{j}_load4(at);" for j in range(count)])
    values = ", ".join(f"value({convert(f'v.{lane}', dtype, reduction.state, fits=True)})" for lane in LANES)
    inside = ", ".join(f"at + {e}u >= low && at + {e}u < high" for e in range(QUAD))
    variables = {name: [f"P.{name}_{j}" for j in range(count)] for name in ("offset", "size", "start")}
    variables["start"][0] = "0u"
    text = [
        *reduction.functions,
        *loads,
        *scalar_function("value", reduction.contribution, element, leaf=leaf),
        f"fn four(v: vec4<{kind}>, at: u32, low: u32, high: u32) -> {t} {{",
        f"  var c = vec4<{t}>({values});",
        f"  if (at < low || at + {QUAD}u > high) {{ c = select(vec4<{t}>(identity()), c, vec4<bool>({inside})); }}",
        "  return merge(merge(c.x, c.y), merge(c.z, c.w));",
        "}",
        *GROUPS,
        "  if (group >= P.groups) { return; }",
        *find_own(variables),
        "  let high = offset + size;",
        f"  let begin = offset / {QUAD}u + (group - start) * P.chunk;",
        f"  let end = min(begin + P.chunk, (high + {QUAD - 1}u) / {QUAD}u);",
        "  var acc = identity();",
        f"  for (var g = begin + lid; g < end; g += {UNROLL * WORKGROUP}u) {{",
        *(
            f"    {{ let i = g + {u * WORKGROUP}u; if (i < end) "
            f"{{ acc = merge(acc, four(load(own, i), i * {QUAD}u, offset, high)); }} }}"
            for u in range(UNROLL)
        ),
        "  }",
        "  share(lid, acc);",
        "  if (lid == 0u) { t_store(P.first + group, states[0]); }",
        "}",
        "",
    ]
    bindings = (*(Binding(f"x{j}", dtype) for j in range(count)), Binding("t", reduction.state, "read_write"))
    name, order = f"{reduction.name} of a list", (*tensors, states)
    return params.launch(name, "\n".join(text), bindings, order, groups * WORKGROUP)


def build_results(reduction: ListReduction, results: range, where: Sequence[tuple[int, int]], states: int) -> Launch:
    """Merges the states of several tensors, and stores each one's result at the beginning of its buffer.

    ``where``: each tensor's first state, and how many it has, in the binding ``states``.
    """
    params, count = scalars(reduction.result), len(results)
    for j, (first, number) in enumerate(where):
        params.add(f"first_{j}", first)
        params.add(f"number_{j}", number)
    t, out = reduction.type, reduction.out
    kind = compute_type(out)
    lines, (value,) = emit_stored([reduction.result], [out], leaf)
    stores = [f"y{j}_store4(0u, v);" for j in range(count)]
    text = [
        *reduction.functions,
        *switch(f"store(own: u32, v: vec4<{kind}>)", stores),
        *function(f"result(x: {t})", kind, lines, value),
        *GROUPS,
        "  var first = P.first_0;",
        "  var number = P.number_0;",
        *(f"  if (group == {j}u) {{ first = P.first_{j}; number = P.number_{j}; }}" for j in range(1, count)),
        "  var acc = identity();",
        f"  for (var i = lid; i < number; i += {WORKGROUP}u) {{ acc = merge(acc, t_load(first + i)); }}",
        "  share(lid, acc);",
        f"  if (lid == 0u) {{ store(group, vec4<{kind}>(result(states[0]))); }}",
        "}",
        "",
    ]
    bindings = (Binding("t", reduction.state), *(Binding(f"y{j}", out, "read_write") for j in range(count)))
    name, order = f"{reduction.name} of a list: results", (states, *results)
    return params.launch(name, "\n".join(text), bindings, order, count * WORKGROUP)


def build_collect(dtype: str, numbers: range, result: int) -> Launch:
    """Puts the arguments ``numbers`` next to each other, from the result's element on that has the first's number."""
    kind, count, params = compute_type(dtype), len(numbers), ParamList()
    params.add("first", numbers[0] // QUAD)
    for j, k in enumerate(numbers):
        params.add(f"offset_{j}", Source("offset", k))
    calls = [f"return x{j}_load(P.offset_{j});" for j in range(count)]
    four = ", ".join(f"load(min(q * {QUAD}u + {e}u, {count - 1}u))" for e in range(QUAD))
    text = [
        *switch(f"load(own: u32) -> {kind}", calls),
        *GROUPS,
        f"  let q = group * {WORKGROUP}u + lid;",
        f"  if (q * {QUAD}u < {count}u) {{ y_store4(P.first + q, vec4<{kind}>({four})); }}",
        "}",
        "",
    ]
    bindings = (*(Binding(f"x{j}", dtype) for j in range(count)), Binding("y", dtype, "read_write"))
    return params.launch("numbers of a list", "\n".join(text), bindings, (*numbers, result), -(-count // QUAD))
