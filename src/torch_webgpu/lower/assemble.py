"""A finished group as one operation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch_webgpu.ir.graph import Body, Expr, Operation, Pointwise, Spec, walk
from torch_webgpu.ir.ops import ops

from .group import Access, Group, Value, rebuilt
from .recording import Recorded, Step

MAX_OPERATIONS = 4096
SHOWN_NAMES = 8


def assemble(recorded: Sequence[Recorded], group: Group, values: Sequence[Value]) -> Step:
    """The step that does what ``group`` does and stores ``values``, which somebody outside of it will see."""
    if len(group.nodes) == 1 and not group.folded:
        i = group.nodes[0]
        node = recorded[i]
        return Step(node.op, tuple([(i, k) for k in range(len(node.uses))]), (i,), (i,), group.reason)
    rows, points = [v for v in values if v.row], [v for v in values if not v.row]
    r = group.reduction
    roots = [*(r.values if r is not None else ()), *(v.expr for v in (*rows, *points))]
    used = sorted({e.args[0] for e in walk(roots) if e.op == "load"})
    memo: dict[Expr, Expr] = {}
    inputs = list(group.inputs.items())
    loads = {old: new for new, old in enumerate(used, len(group.operands))}
    final = [renumber(e, loads, memo) for e in roots]
    body: Body
    if group.product is not None:
        body = replace(group.product, epilogue=tuple(final))
    elif r is None:
        body = Pointwise(tuple(final))
    else:
        n = len(r.values)
        m = n + len(rows)
        body = replace(r, values=tuple(final[:n]), roots=tuple(final[n:m]), maps=tuple(final[m:]))
    specs = [recorded[n].op.args[k] for n, k in group.operands]
    specs += [input_spec(recorded, group, *inputs[old]) for old in used]
    specs += [v.spec for v in (*rows, *points)]
    sources = [*group.operands, *(inputs[old][1] for old in used), *(v.writer for v in (*rows, *points))]
    names = [recorded[n].op.name.removeprefix("aten.").removeprefix("aten::").split(".")[0] for n in group.nodes]
    op = operation(fused_name(names), tuple(specs), len(values), body, tuple(group.kinds))
    return Step(op, tuple(sources), tuple(group.scalars), tuple(group.nodes), group.reason, group.folded)


def input_spec(recorded: Sequence[Recorded], group: Group, access: Access, source: tuple[int, int]) -> Spec:
    """The layout of a fused argument, over the group's shape."""
    spec = recorded[source[0]].op.args[source[1]]
    shape = tuple([n if s else 1 for n, s in zip(group.shape, access.strides, strict=True)])
    return Spec(spec.dtype, shape, access.strides, spec.aligned)


def substitute(expr: Expr, loads: dict[int, Expr], first_param: int, memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its loads replaced and its scalar arguments renumbered from ``first_param`` on."""
    for e in walk([expr]):
        if e in memo:
            continue
        if e.op == "load":
            memo[e] = loads[e.args[0]]
        elif e.op == "param":
            memo[e] = ops.param(e.args[0] + first_param, e.dtype)
        else:
            memo[e] = rebuilt(e, memo)
    return memo[expr]


def renumber(expr: Expr, loads: dict[int, int], memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its loads renumbered."""
    for e in walk([expr]):
        if e in memo:
            continue
        if e.op == "load":
            memo[e] = Expr("load", (loads[e.args[0]],), e.dtype)
        else:
            memo[e] = rebuilt(e, memo)
    return memo[expr]


def fused_name(names: list[str]) -> str:
    """What a fused operation is called in profiles: its operations, the middle of a long chain counted."""
    if len(names) <= SHOWN_NAMES:
        return "+".join(names)
    return "+".join([*names[: SHOWN_NAMES - 1], f"{len(names) - SHOWN_NAMES} more", names[-1]])


_operations: OrderedDict[Any, Operation] = OrderedDict()


def operation(name: str, specs: tuple[Spec, ...], n_outputs: int, body: Body, kinds: tuple[str, ...]) -> Operation:
    """The fused operation with this content. Plans share it, and with it what it was lowered to."""
    key = (specs, n_outputs, body, kinds)
    found = _operations.get(key)
    if found is None:
        found = _operations[key] = Operation(name, specs, n_outputs, body, kinds)
        if len(_operations) > MAX_OPERATIONS:
            _operations.popitem(last=False)
    else:
        _operations.move_to_end(key)
    return found
