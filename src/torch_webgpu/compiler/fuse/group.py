"""A group: nodes of a recording on their way to becoming one operation.

A group has a *shape* whose points it visits. A node belongs there if its own points can be mapped onto the group's:
they are the same, or the same after a view (a matrix product's (B*T, C) and the (B, T, C) of what follows it), or the
same in the order in which the node's elements lie in memory (elementwise operations on a transposed tensor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.operation import Extern, Operation, Pointwise, Reduction, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.layout import Shape, broadcast_strides, iteration_order, view_strides
from torch_webgpu.wgsl.tiling import kept_and_reduced

from .list_group import ListGroup
from .substitution import rewrite

ORDERED_NUMEL = 1 << 16
"""Elements from which it costs more than a dispatch to go through memory against its order."""


class GroupValue(NamedTuple):
    """What a group has computed for a tensor: the expression, how it steps through the group's shape, who wrote it.

    ``row``: there is one per output of the group's reduction, not one per point. ``spec``: the layout it is stored in,
    over the group's points or rows.
    """

    expr: Expr
    strides: Shape
    writer: tuple[int, int]
    row: bool
    spec: Spec


class GroupLoad(NamedTuple):
    """What a group loads: a tensor, stepping through the group's shape."""

    tensor: int
    strides: Shape
    dtype: str


class PointMap(NamedTuple):
    """A node's points as a group's: whether they are its rows, how each argument steps through the group's shape, and
    the layouts of the outputs over the group's points or rows.
    """

    row: bool
    strides: tuple[Shape, ...]
    outputs: tuple[Spec, ...]


@dataclass
class Group:
    """Nodes over ``shape``; ``inputs``: which node's argument each load is.

    ``reduction``: its body so far, if it has one, and ``row_shape`` the shape of its outputs. ``product``: the
    hand-written kernel whose epilogue the other nodes are, and ``operands`` the arguments which that reads as it likes.
    ``folded``: constants stand in place of loads. ``lists``: what it computes if its operations are over lists. A
    ``closed`` group takes no nodes but those.
    """

    shape: Shape
    nodes: list[int] = field(default_factory=list)
    inputs: dict[GroupLoad, tuple[int, int]] = field(default_factory=dict)
    values: dict[int, GroupValue] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)
    scalars: list[int] = field(default_factory=list)
    reduction: Reduction | None = None
    row_shape: Shape | None = None
    product: Extern | None = None
    operands: list[tuple[int, int]] = field(default_factory=list)
    folded: bool = False
    lists: ListGroup | None = None
    closed: bool = False
    reason: str = ""

    def conflicts(self, reads: Iterable[int], writes: Iterable[int]) -> bool:
        """Whether something that uses these allocations must keep its place relative to this group."""
        return not (self.writes.isdisjoint(reads) and self.writes.isdisjoint(writes) and self.reads.isdisjoint(writes))

    def mappings(self, op: Operation) -> Iterator[PointMap]:
        """The ways in which the points of a per-element operation are this group's points or rows."""
        shape = op.outputs[0].shape
        if any(spec.shape != shape for spec in op.outputs):
            return
        for row, target in ((False, self.shape), (True, self.row_shape)):
            if target is not None and prod(target) == prod(shape):
                mapping = self.mapping(op, shape, op.args, target, row)
                if mapping is not None:
                    yield mapping
        if (arranged := in_memory_order(op)) is not None and prod(shape) == prod(self.shape):
            mapping = self.mapping(op, *arranged, self.shape, False)
            if mapping is not None:
                yield mapping

    def mapping(self, op: Operation, shape: Shape, args: tuple[Spec, ...], target: Shape, row: bool) -> PointMap | None:
        """The mapping of points of ``shape``, in row-major order, onto ``target``'s, the group's points or rows."""
        if shape != target and uses(op, "index"):
            return None
        strides, outputs = [], []
        for k, spec in enumerate(args):
            steps: Shape | None = broadcast_strides(spec.shape, spec.strides, shape)
            if shape != target and steps is not None:
                steps = view_strides(shape, steps, target)
            if steps is None:
                return None
            strides.append(self.normal(self.lift(steps) if row else steps))
            if k >= op.n_inputs:
                outputs.append(spec if shape == target else Spec(spec.dtype, target, steps, spec.aligned))
        return PointMap(row, tuple(strides), tuple(outputs))

    def innermost(self) -> int | None:
        """The dimension along which the group's points are neighbours in memory, judged by its first tensor with more
        than one element a row; None if it has none.
        """
        tensors = [
            *[value.strides for value in self.values.values() if not value.row],
            *[a.strides for a in self.inputs],
        ]
        return next((d for d in map(innermost, tensors) if d is not None), None)

    def is_whole(self, strides: Shape) -> bool:
        """Whether something that steps through the group's shape like this is as large as that."""
        return all(stride or size == 1 for stride, size in zip(strides, self.shape, strict=True))

    def reads_across(self, own: int | None) -> bool:
        """Whether it reads much with neighbours along another dimension than ``own``: what is computed of it twice, as
        by a reduction that stores every point, had better read a copy.
        """
        whole = [access.strides for access in self.inputs if self.is_whole(access.strides)]
        return prod(self.shape) >= ORDERED_NUMEL and any(innermost(strides) != own for strides in whole)

    def strides(self, spec: Spec, row: bool) -> Shape:
        """How an argument of the group's own shape, or of its rows', steps through its points; 0 where it does not."""
        if row and self.row_shape is not None:
            return self.normal(self.lift(broadcast_strides(spec.shape, spec.strides, self.row_shape)))
        return self.normal(broadcast_strides(spec.shape, spec.strides, self.shape))

    def normal(self, strides: Shape) -> Shape:
        return tuple([0 if n == 1 else s for s, n in zip(strides, self.shape, strict=True)])

    def lift(self, strides: Shape) -> Shape:
        """Strides over the reduction's outputs as strides over its points."""
        assert self.reduction is not None
        kept, _ = kept_and_reduced(self.reduction)
        if len(strides) == len(self.shape):
            return tuple([s if d in kept else 0 for d, s in enumerate(strides)])
        own = dict(zip(kept, strides, strict=True))
        return tuple([own.get(d, 0) for d in range(len(self.shape))])

    def viewed(self, shape: Shape) -> Group | None:
        """The same group over another shape with the same points in the same order; None if it cannot be."""
        if shape == self.shape:
            return self
        dims = same_dims(self.shape, shape) if self.uses("index") else {}
        if self.fixed or dims is None:
            return None
        memo: dict[Expr, Expr] = {}
        inputs: dict[GroupLoad, tuple[int, int]] = {}
        for access, source in self.inputs.items():
            steps = view_strides(self.shape, access.strides, shape)
            if steps is None:
                return None
            inputs[access._replace(strides=steps)] = source
        values: dict[int, GroupValue] = {}
        for tensor, value in self.values.items():
            steps = view_strides(self.shape, value.strides, shape)
            if steps is None:
                return None
            spec = Spec(value.spec.dtype, shape, steps, value.spec.aligned)
            values[tensor] = value._replace(expr=reindexed(value.expr, dims, memo), strides=steps, spec=spec)
        return replace(self, shape=shape, inputs=inputs, values=values) if len(inputs) == len(self.inputs) else None

    def in_memory_order(self) -> Group | None:
        """The same group with its dimensions in the order in which its first value lies in memory; None if they are
        already, or if it cannot be.
        """
        if self.fixed or self.uses("index", "linear"):
            return None
        permuted = into_memory_order(self.shape, next(iter(self.values.values())).strides)
        if permuted is None:
            return None
        inputs = {a._replace(strides=permuted(a.strides)): source for a, source in self.inputs.items()}
        values = {}
        for tensor, value in self.values.items():
            spec = value.spec._replace(shape=permuted(value.spec.shape), strides=permuted(value.spec.strides))
            values[tensor] = value._replace(strides=permuted(value.strides), spec=spec)
        return replace(self, shape=permuted(self.shape), inputs=inputs, values=values)

    @property
    def fixed(self) -> bool:
        """Whether the group's shape is not its own to choose."""
        return self.closed or self.reduction is not None or self.product is not None

    def uses(self, *leaves: str) -> bool:
        return any(e.op in leaves for e in walk([v.expr for v in self.values.values()]))


def innermost(strides: Shape) -> int | None:
    """The dimension with the smallest step; None if there is none with any."""
    return min((d for d, step in enumerate(strides) if step), key=lambda d: strides[d], default=None)


def same_dims(shape: Shape, target: Shape) -> dict[int, int] | None:
    """Where the dimensions of ``shape`` are in ``target``, if these differ in dimensions of size 1 only."""
    own, other = ([d for d, n in enumerate(sizes) if n != 1] for sizes in (shape, target))
    if [shape[d] for d in own] != [target[d] for d in other]:
        return None
    return dict(zip(own, other, strict=True))


def reindexed(expr: Expr, dims: dict[int, int], memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its coordinates renumbered; along what is not in ``dims`` they are 0."""

    def leaf(e: Expr) -> Expr:
        if e.op != "index":
            return e
        return ops.index(dims[e.args[0]]) if e.args[0] in dims else ops.constant(0, e.dtype)

    return rewrite(expr, leaf, memo)


def uses(op: Operation, *leaves: str) -> bool:
    """Whether an operation's expressions have one of these leaves."""
    assert isinstance(op.body, Pointwise)
    return any(e.op in leaves for e in walk(op.body.roots))


def in_memory_order(op: Operation) -> tuple[Shape, tuple[Spec, ...]] | None:
    """A per-element operation's shape and arguments with its dimensions in the order in which its first output lies in
    memory; None where they are already, or where positions matter.
    """
    first = op.outputs[0]
    permuted = into_memory_order(first.shape, first.strides)
    if permuted is None or uses(op, "index", "linear"):
        return None
    args = []
    for spec in op.args:
        strides = broadcast_strides(spec.shape, spec.strides, first.shape)
        args.append(Spec(spec.dtype, permuted(first.shape), permuted(strides), spec.aligned))
    return permuted(first.shape), tuple(args)


def into_memory_order(shape: Shape, strides: Shape) -> Callable[[Shape], Shape] | None:
    """Puts what dimensions have into the order in which they lie in memory; None if they are in it already."""
    order = iteration_order(shape, strides)
    return None if order == tuple(range(len(order))) else lambda dims: tuple([dims[d] for d in order])
