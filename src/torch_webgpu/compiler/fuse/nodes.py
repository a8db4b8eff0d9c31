"""What fusion makes of a graph's calls, and what it asks of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Argument, Call
from torch_webgpu.ir.operation import Extern, ForEach, Operation, Pointwise, Reduction
from torch_webgpu.layout import extent


class FusionLimits(NamedTuple):
    """A kernel's buffers, how many groups back a call looks for one to join, elements from which fusing pays.

    ``binding_bytes``: what lies in a larger buffer takes several of the kernel's buffers; 0 if nothing does.
    """

    buffers: int = 8
    window: int = 64
    min_numel: int = 0
    binding_bytes: int = 0


@dataclass(frozen=True)
class FusedNode:
    """One or several calls as one operation.

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


def allocations(node: Call, known: Container[int] = ()) -> tuple[set[int], set[int]]:
    """What a node reads, but for the inputs in ``known``, and what it writes. An output that may not be written whole
    counts as both.
    """
    n = node.op.n_inputs
    writes = touched(node.arguments[n:])
    reads = touched([u for k, u in enumerate(node.arguments[:n]) if k not in known])
    if not isinstance(node.op.body, (Pointwise, Reduction, ForEach)) and product(node.op) is None:
        reads |= writes
    return reads, writes


def touched(uses: Iterable[Argument]) -> set[int]:
    """The allocations that these arguments lie in."""
    storages = set()
    for use in uses:
        storages.add(use.storage)
        if use.members:
            storages |= use.members
    return storages


def numel(node: Call) -> int:
    return prod(node.op.outputs[0].shape)


def bindings(recorded: Sequence[Call], binding_bytes: int) -> dict[int, int]:
    """How often each tensor that is larger than ``binding_bytes`` is bound, as far as its tensors show."""
    counts: dict[int, int] = {}
    for node in recorded:
        for spec, use in zip(node.op.args, node.arguments, strict=True):
            size_bytes = extent(spec.shape, spec.strides) * BY_NAME[spec.dtype].itemsize
            if size_bytes > binding_bytes:
                counts[use.tensor] = max(counts.get(use.tensor, 1), -(-size_bytes // binding_bytes))
    return counts
