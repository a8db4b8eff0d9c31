"""Fusion: a recording's operations, in program order, become as few as mean the same.

Per-element operations over one iteration shape become one operation with several outputs. A reduction takes the
per-element operations before it as its prologue and those after it as its maps and epilogue. What is written and never
read again outside its group is not written at all.

A *place* is where a tensor starts: allocation, offset and dtype. Two arguments are the same elements in the same order
if their place is the same and they step through the iteration shape alike. Whatever else shares an allocation with a
write may overlap it, and keeps its order relative to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch_webgpu.ir.graph import Expr, Operation, Pointwise, Reduction, Spec, walk
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import Shape, broadcast_strides

MAX_EXPRESSIONS = 300
"""Distinct expressions in one kernel: more make drivers spill registers and compile slowly."""
MAX_OPERATIONS = 4096
SHOWN_NAMES = 8


class Use(NamedTuple):
    """One argument of a recorded node: the number of its place and of its allocation."""

    place: int
    allocation: int


class Recorded(NamedTuple):
    """One node of a recording: its operation, and a :class:`Use` for each argument."""

    op: Operation
    uses: tuple[Use, ...]


class Limits(NamedTuple):
    """What fusion may do: a kernel's buffers, how many groups back a node looks, elements from which it pays."""

    buffers: int = 8
    window: int = 64
    min_numel: int = 0


@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    ``sources[k]``: the (node, argument) whose tensor is argument ``k``. ``scalars``: the nodes whose scalars, one after
    the other, are the operation's. ``nodes``: what it stands for. ``reason``: why it did not join what came before.
    """

    op: Operation
    sources: tuple[tuple[int, int], ...]
    scalars: tuple[int, ...]
    nodes: tuple[int, ...]
    reason: str = ""


class Value(NamedTuple):
    """What a group has computed for a place: the expression, how it steps through the group's shape, who wrote it.

    ``row``: there is one per output of the group's reduction, not one per point.
    """

    expr: Expr
    strides: Shape
    writer: tuple[int, int]
    row: bool


class Access(NamedTuple):
    """What a group loads: a place, stepping through the group's shape."""

    place: int
    strides: Shape
    dtype: str


@dataclass
class Group:
    """Nodes on their way to becoming one operation over ``shape``; ``inputs``: which node's argument each load is."""

    shape: Shape
    nodes: list[int] = field(default_factory=list)
    inputs: dict[Access, tuple[int, int]] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)
    scalars: list[int] = field(default_factory=list)
    reduction: Reduction | None = None
    row_shape: Shape | None = None
    closed: bool = False
    reason: str = ""

    def conflicts(self, reads: Iterable[int], writes: Iterable[int]) -> bool:
        """Whether something that uses these allocations must keep its place relative to this group."""
        return not (self.writes.isdisjoint(reads) and self.writes.isdisjoint(writes) and self.reads.isdisjoint(writes))

    def position_of(self, node: Recorded) -> str | None:
        """ "point" if ``node`` computes one element per point, "row" if one per output of the reduction, else None."""
        shape = node.op.outputs[0].shape
        if any(spec.shape != shape for spec in node.op.outputs):
            return None
        if shape == self.shape:
            return "point"
        return "row" if shape == self.row_shape else None

    def strides(self, spec: Spec, row: bool) -> Shape:
        """How an argument of a "point" or "row" node steps through the group's shape; 0 where it does not."""
        if not row or self.row_shape is None:
            found = broadcast_strides(spec.shape, spec.strides, self.shape)
        else:
            own = broadcast_strides(spec.shape, spec.strides, self.row_shape)
            found = self.lift(own)
        return tuple([0 if n == 1 else s for s, n in zip(found, self.shape, strict=True)])

    def lift(self, strides: Shape) -> Shape:
        """Strides over the reduction's outputs as strides over its points."""
        assert self.reduction is not None
        kept = kept_dims(self.reduction)
        if len(strides) == len(self.shape):
            return tuple([s if d in kept else 0 for d, s in enumerate(strides)])
        own = dict(zip(kept, strides, strict=True))
        return tuple([own.get(d, 0) for d in range(len(self.shape))])


def kept_dims(r: Reduction) -> list[int]:
    rank = len(r.shape)
    reduced = {d % rank for d in r.dims} if rank else set()
    return [d for d in range(rank) if d not in reduced]


def substitute(expr: Expr, loads: dict[int, Expr], first_param: int, memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its loads replaced and its scalar arguments renumbered from ``first_param`` on."""
    for e in walk([expr]):
        if e in memo:
            continue
        if e.op == "load":
            memo[e] = loads[e.args[0]]
        elif e.op == "param":
            memo[e] = ops.param(e.args[0] + first_param, e.dtype)
        elif any(isinstance(a, Expr) for a in e.args):
            memo[e] = Expr(e.op, tuple([memo[a] if isinstance(a, Expr) else a for a in e.args]), e.dtype)
        else:
            memo[e] = e
    return memo[expr]


class Fuser:
    """One pass over a recording. ``live``: the allocations whose contents can be seen afterwards."""

    def __init__(self, recorded: Sequence[Recorded], live: frozenset[int], limits: Limits) -> None:
        self.recorded = recorded
        self.live = live
        self.limits = limits
        self.groups: list[Group] = []

    def run(self) -> list[Step]:
        for i, node in enumerate(self.recorded):
            if isinstance(node.op.body, Pointwise):
                self.place_pointwise(i, node)
            elif isinstance(node.op.body, Reduction):
                self.place_reduction(i, node, node.op.body)
            else:
                self.place_alone(i, node, "its kernel is hand-written")
        return [step for p, group in enumerate(self.groups) if (step := self.finish(group, p)) is not None]

    # Placing a node

    def place_alone(self, i: int, node: Recorded, reason: str) -> None:
        group = Group((), closed=True, reason=reason)
        note(group, i, node)
        self.groups.append(group)

    def place_pointwise(self, i: int, node: Recorded) -> None:
        reads, writes = allocations(node)
        reason = ""
        for back, group in enumerate(reversed(self.groups)):
            if back >= self.limits.window:
                reason = reason or "the fusion window ends here"
                break
            refusal = self.refusal(group, node)
            if not refusal:
                self.join(group, i, node)
                return
            reason = reason or refusal
            if group.conflicts(reads, writes):
                break
        group = Group(node.op.outputs[0].shape, reason=reason)
        if group.position_of(node) is None or numel(node) < self.limits.min_numel:
            self.place_alone(i, node, reason)
            return
        self.join(group, i, node)
        self.groups.append(group)

    def refusal(self, group: Group, node: Recorded) -> str:
        """Why ``node`` cannot become part of ``group``; empty if it can."""
        body = node.op.body
        assert isinstance(body, Pointwise)
        if group.closed:
            return "the operation before it has a kernel of its own"
        position = group.position_of(node)
        if position is None:
            return f"its shape {node.op.outputs[0].shape} is not the group's {group.shape}"
        if numel(node) < self.limits.min_numel:
            return f"it has fewer than {self.limits.min_numel} elements"
        row = position == "row"
        if row and any(e.op in ("index", "linear") for e in walk(body.roots)):
            return "it depends on positions, which a reduction numbers its own way"
        inputs = node.op.n_inputs
        for k, (spec, use) in enumerate(zip(node.op.args, node.uses, strict=True)):
            strides = group.strides(spec, row)
            value = group.values.get(use.place)
            if value is not None:
                if value.strides != strides or value.expr.dtype != spec.dtype or (k >= inputs and value.row != row):
                    return "it uses a tensor of the group in another order"
            elif use.allocation in group.writes:
                return "it uses other elements of a tensor that the group writes"
            if k >= inputs and self.read_otherwise(group, node, use, Access(use.place, strides, spec.dtype)):
                return "it writes a tensor that the group reads in another order"
        if group.reduction is not None and self.too_late(group, node, row):
            return "the reduction's rows overwrite what its points still need"
        buffers = {access.place for access in group.inputs} | group.values.keys() | {u.place for u in node.uses}
        if len(buffers) > self.limits.buffers:
            return f"a kernel has at most {self.limits.buffers} buffers here"
        size = sum(1 for _ in walk([v.expr for v in group.values.values()])) + sum(1 for _ in walk(body.roots))
        return "the kernel would grow too large" if size > MAX_EXPRESSIONS else ""

    def read_otherwise(self, group: Group, node: Recorded, use: Use, written: Access) -> bool:
        """Whether the group, or the node itself, reads the allocation of an output other than element on element."""
        for access, (n, k) in group.inputs.items():
            if self.recorded[n].uses[k].allocation == use.allocation and access != written:
                return True
        return any(u.allocation == use.allocation and u.place != use.place for u in node.uses)

    def too_late(self, group: Group, node: Recorded, row: bool) -> bool:
        """Whether the maps would load a place that the rows overwrite: rows are stored before maps are computed."""
        places = [access.place for access in group.inputs]

        def loaded(expr: Expr) -> set[int]:
            return {places[e.args[0]] for e in walk([expr]) if e.op == "load"}

        used, written = node.uses[: node.op.n_inputs], {u.place for u in node.uses[node.op.n_inputs :]}
        rows = {place for place, value in group.values.items() if value.row}
        if row:
            return any(not v.row and not written.isdisjoint(loaded(v.expr)) for v in group.values.values())
        values = [group.values.get(use.place) for use in used]
        return any(value is not None and not rows.isdisjoint(loaded(value.expr)) for value in values)

    def place_reduction(self, i: int, node: Recorded, body: Reduction) -> None:
        group, reason = self.absorbed(node, body)
        if group is None:
            group = Group(body.shape, reason=reason)
        loads = self.operands(group, i, node, row=False)
        first = len(group.kinds)
        memo: dict[Expr, Expr] = {}
        values, roots, maps = (
            tuple([substitute(e, loads, first, memo) for e in part]) for part in (body.values, body.roots, body.maps)
        )
        note(group, i, node)
        group.reduction = replace(body, values=values, roots=roots, maps=maps)
        first_out = node.op.n_inputs
        if roots:
            group.row_shape = node.op.args[first_out].shape
        for k, expr in enumerate((*roots, *maps), first_out):
            row = k < first_out + len(roots)
            spec = node.op.args[k]
            strides = group.strides(spec, row)
            group.values[node.uses[k].place] = Value(ops.to_dtype(expr, spec.dtype), strides, (i, k), row)
        self.groups.append(group)

    def absorbed(self, node: Recorded, body: Reduction) -> tuple[Group | None, str]:
        """The group that computes the reduction's inputs point by point, taken out of its place; or why not."""
        inputs = list(zip(node.op.inputs, node.uses, strict=False))
        written = {u.allocation for u in node.uses[node.op.n_inputs :]}
        for position in range(len(self.groups) - 1, -1, -1):
            group = self.groups[position]
            feeds = [(spec, use) for spec, use in inputs if use.allocation in group.writes]
            if not feeds:
                continue
            if group.closed or group.reduction is not None or group.shape != body.shape:
                return None, "what feeds it has a kernel of another shape"
            for spec, use in feeds:
                value = group.values.get(use.place)
                if value is None or value.strides != group.strides(spec, row=False) or value.expr.dtype != spec.dtype:
                    return None, "it reads what feeds it in another order"
            if any(self.recorded[n].uses[k].allocation in self.live for _, _, (n, k), _ in group.values.values()):
                return None, "what feeds it is needed by itself"
            if not written.isdisjoint(group.reads | group.writes) or not group.writes.isdisjoint(external(group, self)):
                return None, "it writes what feeds it"
            if (
                len({access.place for access in group.inputs} | group.values.keys() | {u.place for u in node.uses})
                > self.limits.buffers
            ):
                return None, f"a kernel has at most {self.limits.buffers} buffers here"
            if any(other.conflicts(group.reads, group.writes) for other in self.groups[position + 1 :]):
                return None, "another operation stands between it and what feeds it"
            return self.groups.pop(position), ""
        return None, ""

    # Joining

    def join(self, group: Group, i: int, node: Recorded) -> None:
        body = node.op.body
        assert isinstance(body, Pointwise)
        row = group.position_of(node) == "row"
        loads = self.operands(group, i, node, row)
        first = len(group.kinds)
        memo: dict[Expr, Expr] = {}
        results = [substitute(root, loads, first, memo) for root in body.roots]
        note(group, i, node)
        for k, result in enumerate(results, node.op.n_inputs):
            spec = node.op.args[k]
            value = Value(ops.to_dtype(result, spec.dtype), group.strides(spec, row), (i, k), row)
            group.values[node.uses[k].place] = value

    def operands(self, group: Group, i: int, node: Recorded, row: bool) -> dict[int, Expr]:
        """What each input of ``node`` is inside the group: a value the group has, or a load of (place, strides)."""
        loads: dict[int, Expr] = {}
        for k, (spec, use) in enumerate(zip(node.op.inputs, node.uses, strict=False)):
            value = group.values.get(use.place)
            if value is not None:
                loads[k] = value.expr
                continue
            access = Access(use.place, group.strides(spec, row), spec.dtype)
            group.inputs.setdefault(access, (i, k))
            loads[k] = ops.load(list(group.inputs).index(access), spec.dtype)
        return loads

    # Finishing

    def stored(self, group: Group, position: int) -> list[Value]:
        """What somebody outside the group will see."""
        later: set[int] = set()
        for other in self.groups[position + 1 :]:
            later |= other.reads
        seen = self.live | later
        return [v for v in group.values.values() if self.recorded[v.writer[0]].uses[v.writer[1]].allocation in seen]

    def finish(self, group: Group, position: int) -> Step | None:
        """The group as one operation; None if nobody sees what it does."""
        values = self.stored(group, position)
        if not values and not group.closed:
            return None
        if len(group.nodes) == 1:
            i = group.nodes[0]
            node = self.recorded[i]
            return Step(node.op, tuple([(i, k) for k in range(len(node.uses))]), (i,), (i,), group.reason)
        rows, points = [v for v in values if v.row], [v for v in values if not v.row]
        r = group.reduction
        roots = [*(r.values if r is not None else ()), *(v.expr for v in (*rows, *points))]
        used = sorted({e.args[0] for e in walk(roots) if e.op == "load"})
        memo: dict[Expr, Expr] = {}
        inputs = list(group.inputs.items())
        loads = {old: new for new, old in enumerate(used)}
        final = [renumber(e, loads, memo) for e in roots]
        if r is None:
            body: Pointwise | Reduction = Pointwise(tuple(final))
        else:
            n = len(r.values)
            m = n + len(rows)
            body = replace(r, values=tuple(final[:n]), roots=tuple(final[n:m]), maps=tuple(final[m:]))
        specs = [self.input_spec(group, *inputs[old]) for old in used]
        specs += [self.recorded[v.writer[0]].op.args[v.writer[1]] for v in (*rows, *points)]
        sources = [inputs[old][1] for old in used] + [v.writer for v in (*rows, *points)]
        names = [self.recorded[n].op.name.removeprefix("aten.").split(".")[0] for n in group.nodes]
        op = operation(fused_name(names), tuple(specs), len(values), body, tuple(group.kinds))
        return Step(op, tuple(sources), tuple(group.scalars), tuple(group.nodes), group.reason)

    def input_spec(self, group: Group, access: Access, source: tuple[int, int]) -> Spec:
        """The layout of a fused argument, over the group's shape."""
        spec = self.recorded[source[0]].op.args[source[1]]
        shape = tuple([n if s else 1 for n, s in zip(group.shape, access.strides, strict=True)])
        return Spec(spec.dtype, shape, access.strides, spec.aligned)


def renumber(expr: Expr, loads: dict[int, int], memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its loads renumbered."""
    for e in walk([expr]):
        if e in memo:
            continue
        if e.op == "load":
            memo[e] = Expr("load", (loads[e.args[0]],), e.dtype)
        elif any(isinstance(a, Expr) for a in e.args):
            memo[e] = Expr(e.op, tuple([memo[a] if isinstance(a, Expr) else a for a in e.args]), e.dtype)
        else:
            memo[e] = e
    return memo[expr]


def fused_name(names: list[str]) -> str:
    """What a fused operation is called in profiles: its operations, the middle of a long chain counted."""
    if len(names) <= SHOWN_NAMES:
        return "+".join(names)
    return "+".join([*names[: SHOWN_NAMES - 1], f"{len(names) - SHOWN_NAMES} more", names[-1]])


_operations: OrderedDict[Any, Operation] = OrderedDict()


def operation(
    name: str, specs: tuple[Spec, ...], n_outputs: int, body: Pointwise | Reduction, kinds: tuple[str, ...]
) -> Operation:
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


def external(group: Group, fuser: Fuser) -> set[int]:
    """The allocations a group reads from outside."""
    return {fuser.recorded[n].uses[k].allocation for n, k in group.inputs.values()}


def note(group: Group, i: int, node: Recorded) -> None:
    """Adds a node to a group's books."""
    reads, writes = allocations(node)
    group.nodes.append(i)
    group.reads |= reads
    group.writes |= writes
    group.kinds += node.op.param_kinds
    if node.op.param_kinds:
        group.scalars.append(i)


def allocations(node: Recorded) -> tuple[set[int], set[int]]:
    """What a node reads and what it writes. An output of a hand-written kernel counts as both."""
    n = node.op.n_inputs
    writes = {u.allocation for u in node.uses[n:]}
    reads = {u.allocation for u in node.uses[:n]}
    if not isinstance(node.op.body, (Pointwise, Reduction)):
        reads |= writes
    return reads, writes


def numel(node: Recorded) -> int:
    count = 1
    for n in node.op.outputs[0].shape:
        count *= n
    return count


def fuse(recorded: Sequence[Recorded], live: frozenset[int], limits: Limits) -> list[Step]:
    """The steps that do what ``recorded`` does, as far as the allocations in ``live`` can show."""
    return Fuser(recorded, live, limits).run()
