"""A finished group as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.graph import Call
from torch_webgpu.ir.names import fused_name
from torch_webgpu.ir.operation import Body, Operation, Pointwise, Spec

from .group import Group, GroupLoad, GroupValue
from .nodes import FusedNode
from .substitution import renumber


def assemble(recorded: Sequence[Call], group: Group, values: Sequence[GroupValue]) -> FusedNode:
    """The step that does what ``group`` does and stores ``values``, which somebody outside of it will see."""
    if len(group.nodes) == 1 and not group.folded:
        return FusedNode.alone(group.nodes[0], recorded[group.nodes[0]].op, group.reason)
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
    name = fused_name([recorded[n].op.name for n in group.nodes])
    op = Operation(name, tuple(specs), len(values), body, tuple(group.kinds))
    return FusedNode(op, tuple(sources), tuple(group.scalars), tuple(group.nodes), group.reason, group.folded)


def input_spec(recorded: Sequence[Call], group: Group, access: GroupLoad, source: tuple[int, int]) -> Spec:
    """The layout of a fused argument, over the group's shape."""
    spec = recorded[source[0]].op.args[source[1]]
    shape = tuple([n if s else 1 for n, s in zip(group.shape, access.strides, strict=True)])
    return Spec(spec.dtype, shape, access.strides, spec.aligned)
