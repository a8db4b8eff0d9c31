"""A group of operations over lists on its way to becoming one: a pass over the tuples of its lists.

Two lists are the same one or, where one of them is written, have no tensor in common: within a group they behave like
variables.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.graph import Argument, Call
from torch_webgpu.ir.names import fused_name
from torch_webgpu.ir.operation import ForEach, Number, Operation
from torch_webgpu.ir.ops import ops

from .nodes import FusedNode
from .substitution import renumber, substitute

MAX_NUMBERS = 64


class ListValue(NamedTuple):
    """What a group has computed for a list, and the (node, argument) that it was written as."""

    expr: Expr
    writer: tuple[int, int]


@dataclass
class ListGroup:
    """``inputs``: which node's argument each load is, by its list's number. ``arguments``: of every list, by number."""

    domain: ForEach
    inputs: dict[int, tuple[int, int]] = field(default_factory=dict)
    values: dict[int, ListValue] = field(default_factory=dict)
    arguments: dict[int, Argument] = field(default_factory=dict)
    numbers: list[Number] = field(default_factory=list)

    def refusal(self, node: Call, recorded: Sequence[Call], max_buffers: int) -> str:
        """Why ``node`` cannot become part of it; empty if it can."""
        body = body_of(node)
        if (body.shapes, body.strides) != (self.domain.shapes, self.domain.strides):
            return "its tensors are not laid out like those of the operation before it"
        arguments = {use.tensor: use for use in node.arguments}
        if len(self.arguments.keys() | arguments.keys()) > max_buffers:
            return f"a kernel has at most {max_buffers} buffers here"
        if len(self.numbers) + len(body.numbers) > MAX_NUMBERS:
            return "the kernel would have too many numbers"
        for k, use in enumerate(node.arguments):
            if use.tensor in self.arguments and self.kind_of(use.tensor, recorded) != (
                node.op.args[k].dtype,
                body.layouts[k],
            ):
                return "it uses a list of the operation before it otherwise"
        written = self.values.keys() | {use.tensor for use in node.arguments[node.op.n_inputs :]}
        for tensor, use in arguments.items():
            for other, known in self.arguments.items():
                if other != tensor and (tensor in written or other in written) and use.storages & known.storages:
                    return "its lists share tensors with those of the operation before it"
        return ""

    def kind_of(self, tensor: int, recorded: Sequence[Call]) -> tuple[str, str]:
        """The dtype of a list and what a tuple has of it."""
        n, k = self.values[tensor].writer if tensor in self.values else self.inputs[tensor]
        return recorded[n].op.args[k].dtype, body_of(recorded[n]).layouts[k]

    def add(self, i: int, node: Call) -> None:
        """Makes node ``i`` part of it."""
        op, body = node.op, body_of(node)
        loads: dict[int, Expr] = {}
        for k, spec in enumerate(op.inputs):
            tensor = node.arguments[k].tensor
            value = self.values.get(tensor)
            if value is None:
                self.inputs.setdefault(tensor, (i, k))
                loads[k] = ops.load(list(self.inputs).index(tensor), spec.dtype)
            else:
                loads[k] = value.expr
        memo: dict[Expr, Expr] = {}
        results = [substitute(root, loads, len(self.numbers), memo) for root in body.roots]
        for k, result in enumerate(results, op.n_inputs):
            self.values[node.arguments[k].tensor] = ListValue(ops.to_dtype(result, op.args[k].dtype), (i, k))
        self.numbers += body.numbers
        self.arguments |= {use.tensor: use for use in node.arguments}

    def finish(
        self,
        recorded: Sequence[Call],
        nodes: Sequence[int],
        scalars: Sequence[int],
        reason: str,
        seen: Container[int],
    ) -> FusedNode | None:
        """It as one operation that stores what lies in the allocations ``seen``; None if nothing does."""
        kept = [
            value for tensor, value in self.values.items() if any(a in seen for a in self.arguments[tensor].storages)
        ]
        if not kept:
            return None
        if len(nodes) == 1:
            return FusedNode.alone(nodes[0], recorded[nodes[0]].op, reason)
        used = sorted({e.args[0] for e in walk([value.expr for value in kept]) if e.op == "load"})
        memo: dict[Expr, Expr] = {}
        loads = {old: new for new, old in enumerate(used)}
        roots = tuple([renumber(value.expr, loads, memo) for value in kept])
        inputs = list(self.inputs.values())
        sources = [*(inputs[k] for k in used), *(value.writer for value in kept)]
        layouts = tuple([body_of(recorded[n]).layouts[k] for n, k in sources])
        body = ForEach(roots, layouts, tuple(self.numbers), self.domain.shapes, self.domain.strides)
        specs = tuple([recorded[n].op.args[k] for n, k in sources])
        name = fused_name([recorded[n].op.name for n in nodes])
        op = Operation(name, specs, len(kept), body, body.param_kinds)
        return FusedNode(op, tuple(sources), tuple(scalars), tuple(nodes), reason)


def body_of(node: Call) -> ForEach:
    assert isinstance(node.op.body, ForEach)
    return node.op.body
