"""What the fuser is given and what it returns: recorded nodes without their tensors, and the steps of a plan."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from torch_webgpu.ir.graph import Extern, Operation, Pointwise, Reduction


class Use(NamedTuple):
    """One argument of a recorded node: the number of its place and of its allocation."""

    place: int
    allocation: int


class Recorded(NamedTuple):
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
class Step:
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

    @property
    def unchanged(self) -> bool:
        """Whether it is the operation of its only node."""
        return len(self.nodes) == 1 and not self.folded


def product(op: Operation) -> Extern | None:
    """The body of an operation that other operations can become the epilogue of."""
    return op.body if isinstance(op.body, Extern) and op.body.epilogue else None


def allocations(node: Recorded, known: Container[int] = ()) -> tuple[set[int], set[int]]:
    """What a node reads, but for the inputs in ``known``, and what it writes. An output that may not be written whole
    counts as both.
    """
    n = node.op.n_inputs
    writes = {u.allocation for u in node.uses[n:]}
    reads = {u.allocation for k, u in enumerate(node.uses[:n]) if k not in known}
    if not isinstance(node.op.body, (Pointwise, Reduction)) and product(node.op) is None:
        reads |= writes
    return reads, writes


def numel(node: Recorded) -> int:
    return prod(node.op.outputs[0].shape)
