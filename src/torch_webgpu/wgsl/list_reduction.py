"""Kernels that reduce each tensor of a list to one number, and that collect such numbers.

A workgroup takes one piece of one tensor, which it finds by comparing its number with the tensors' first workgroups, as
in :mod:`.horizontal`, and leaves a partial result; a second kernel, a workgroup per tensor, merges them. Elements are
read in fours from where fours begin in the buffer, wherever the tensor does; what lies outside counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from torch_webgpu.ir.combine import COMBINES
from torch_webgpu.ir.graph import Expr, walk

from .expr import compute_type, convert, emit, emit_stored, function, scalar_function
from .fold import tree
from .horizontal import find_own, switch
from .indexing import GROUPS, LANES, QUAD
from .kernel import Binding, Kernel, Param
from .launch import WORKGROUP

UNROLL = 4
KERNEL_CACHE_SIZE = 256


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


def scalars(e: Expr) -> list[int]:
    """The numbers of the scalars that an expression uses."""
    return sorted({x.args[0] for x in walk((e,)) if x.op == "param"})


@lru_cache(KERNEL_CACHE_SIZE)
def build_partials(reduction: ListReduction, count: int) -> Kernel:
    """Leaves a state for each workgroup, for ``count`` tensors.

    Bindings: the tensors, the states. Parameters: the contribution's scalars; ``first``, where the first state goes;
    ``chunk``, the fours in a piece; ``groups``; per tensor ``offset`` and ``size`` in elements, and ``start``, its
    first workgroup (but the first tensor's).
    """
    t, dtype = reduction.type, reduction.dtype
    kind = compute_type(dtype)
    element = Expr("acc", ("x",), reduction.state)
    loads = switch(f"load(own: u32, at: u32) -> vec4<{kind}>", [f"return x{j}_load4(at);" for j in range(count)])
    values = ", ".join(f"value({convert(f'v.{lane}', dtype, reduction.state, fits=True)})" for lane in LANES)
    inside = ", ".join(f"at + {e}u >= low && at + {e}u < high" for e in range(QUAD))
    variables = {name: [f"P.{name}_{j}" for j in range(count)] for name in ("offset", "size", "start")}
    variables["start"][0] = "0u"
    text = [
        *reduction.functions(),
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
    params = [Param(f"s{k}", "f32") for k in scalars(reduction.contribution)]
    params += [Param("first"), Param("chunk"), Param("groups")]
    for j in range(count):
        params += [Param(f"offset_{j}"), Param(f"size_{j}"), *([Param(f"start_{j}")] if j else [])]
    bindings = (*(Binding(f"x{j}", dtype) for j in range(count)), Binding("t", reduction.state, "read_write"))
    return Kernel(f"{reduction.name} of a list", "\n".join(text), bindings, tuple(params), trusted=True)


@lru_cache(KERNEL_CACHE_SIZE)
def build_results(reduction: ListReduction, count: int) -> Kernel:
    """Merges the states of ``count`` tensors, and stores each result at the beginning of its buffer.

    Bindings: the states, the results. Parameters: the result's scalars; per tensor ``first`` and ``number``, where its
    states lie.
    """
    t, out = reduction.type, reduction.out
    kind = compute_type(out)
    lines, (value,) = emit_stored([reduction.result], [out], leaf)
    stores = [f"y{j}_store4(0u, v);" for j in range(count)]
    text = [
        *reduction.functions(),
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
    params = [Param(f"s{k}", "f32") for k in scalars(reduction.result)]
    for j in range(count):
        params += [Param(f"first_{j}"), Param(f"number_{j}")]
    results = (Binding(f"y{j}", out, "read_write") for j in range(count))
    bindings = (Binding("t", reduction.state), *results)
    return Kernel(f"{reduction.name} of a list: results", "\n".join(text), bindings, tuple(params), trusted=True)


@lru_cache(KERNEL_CACHE_SIZE)
def build_collect(dtype: str, count: int) -> Kernel:
    """Puts ``count`` numbers next to each other.

    Bindings: the numbers' buffers, the result. Parameters: ``first``, the result's group of four that it begins with;
    per number its ``offset`` in elements.
    """
    kind = compute_type(dtype)
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
    params = (Param("first"), *(Param(f"offset_{j}") for j in range(count)))
    return Kernel("numbers of a list", "\n".join(text), bindings, params, trusted=True)
