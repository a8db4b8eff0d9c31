"""What the fuser is given and what it returns: recorded nodes without their tensors, and the steps of a plan."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from torch_webgpu.ir.operation import Extern, ForEach, Operation, Pointwise, Reduction


class Use(NamedTuple):
    """One argument of a recorded node: the number of its place and of its allocation.

    A list has a number in place of an allocation's; those that it has tensors in and that have numbers, too, since
    other arguments lie in them, are its ``members``.
    """

    place: int
    allocation: int
    members: frozenset[int] = frozenset()

    @property
    def allocations(self) -> frozenset[int]:
        """All that it touches."""
        return self.members | {self.allocation}


class RecordedNode(NamedTuple):
    """One node of a recording: its operation, and a :class:`Use` for each argument."""

    op: Operation
    uses: tuple[Use, ...]


class Limits(NamedTuple):
    """What fusion may do: a kernel's buffers, how many groups back a node looks, elements from which it pays.

    ``binding_bytes``: what lies in a larger buffer takes several of the kernel's buffers; 0 if nothing does.
    """

    buffers: int = 8
    window: int = 64
    min_numel: int = 0
    binding_bytes: int = 0


@dataclass(frozen=True)
class FusedNode:
    """One operation of a plan.

    ``sources[k]``: the (node, argument) whose tensor is argument ``k``. ``scalars``: the nodes whose scalars, one after
    the other, are the operation's. ``nodes``: what it stands for. ``reason``: why it did not join what came before.
    ``folded``: it has scalars of other nodes as well, in place of what these filled with them.
    """

    op: Operation
    sources: tuple[tuple[int, int], ...]
    scalars: tuple[int, ...]
    nodes: tuple[int, ...]
    reason: str = ""
    folded: bool = False

    @staticmethod
    def alone(i: int, op: Operation, reason: str = "") -> FusedNode:
        """Node ``i`` as it was recorded."""
        return FusedNode(op, tuple([(i, k) for k in range(len(op.args))]), (i,), (i,), reason)

    @property
    def unchanged(self) -> bool:
        """Whether it is the operation of its only node."""
        return len(self.nodes) == 1 and not self.folded


def product(op: Operation) -> Extern | None:
    """The body of an operation that other operations can become the epilogue of."""
    return op.body if isinstance(op.body, Extern) and op.body.epilogue else None


def allocations(node: RecordedNode, known: Container[int] = ()) -> tuple[set[int], set[int]]:
    """What a node reads, but for the inputs in ``known``, and what it writes. An output that may not be written whole
    counts as both.
    """
    n = node.op.n_inputs
    writes = touched(node.uses[n:])
    reads = touched([u for k, u in enumerate(node.uses[:n]) if k not in known])
    if not isinstance(node.op.body, (Pointwise, Reduction, ForEach)) and product(node.op) is None:
        reads |= writes
    return reads, writes


def touched(uses: Iterable[Use]) -> set[int]:
    """The allocations that these arguments lie in."""
    found = set()
    for use in uses:
        found.add(use.allocation)
        if use.members:
            found |= use.members
    return found


def numel(node: RecordedNode) -> int:
    return prod(node.op.outputs[0].shape)
