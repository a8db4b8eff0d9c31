"""Where fusing large tensors would move more bytes than it saves.

A value that joins a group long before what reads it is written and read again, where its own readers would have
computed it as they need it. A product that stores its result in a wider type, for per-element operations that are not
part of its kernel, stores and has them read twice as much. (GELU's gradient under autocast: half of its traffic.) And
what a reduction computes for itself, from a tensor that is stored anyway, a product need not store as well. (The
squares of an RMS norm.)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from math import prod

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.graph import Call
from torch_webgpu.ir.operation import Pointwise, Reduction

from .group import Group
from .nodes import numel

LARGE_NUMEL = 1 << 20
"""Elements from which moving them costs more than a dispatch."""
FAR = 16
"""Operations between two that have nothing in common, from which on the first one's group is not the second's."""
PROLOGUE_STEPS = 3
"""Per-element operations between a product and a reduction that are looked at."""


def waits(group: Group, i: int, node: Call) -> bool:
    """Whether node ``i``, large and without anything in common with a group, would join it long before it is needed."""
    if numel(node) < LARGE_NUMEL or not group.nodes or i - group.nodes[-1] <= FAR:
        return False
    read = {use.tensor for use in node.arguments[: node.op.n_inputs]}
    return read.isdisjoint([*group.values, *[access.tensor for access in group.inputs]])


def widens(group: Group, node: Call, later: Iterable[Call]) -> bool:
    """Whether a node is a large tensor in a wider type, which ``later`` operations read together with other large
    tensors than the group's: these are unlikely to be part of its kernel, and would read what it stores.
    """
    inputs, outputs = node.op.inputs, node.op.outputs
    if numel(node) < LARGE_NUMEL or len(inputs) != 1 or len(outputs) != 1:
        return False
    if BY_NAME[outputs[0].dtype].itemsize <= BY_NAME[inputs[0].dtype].itemsize:
        return False
    known = {*group.values, node.arguments[1].tensor}
    return any(
        prod(spec.shape) == numel(node) and use.tensor not in known
        for reader in later
        if isinstance(reader.op.body, (Pointwise, Reduction))
        for spec, use in zip(reader.op.inputs, reader.arguments, strict=False)
    )


def feeds_reduction(
    group: Group, node: Call, live: Container[int], readers: Callable[[int], Sequence[Call]], owners: dict[int, int]
) -> bool:
    """Whether a reduction is to compute a node that could be part of a product's epilogue: it is not needed by itself,
    and what it is of is stored anyway, or in a narrower type.

    ``readers``: the calls after the node that use an allocation; ``owners``: the allocations of tensors.
    """
    inputs, (output, *others) = node.op.n_inputs, node.op.outputs
    storage = node.arguments[inputs].storage
    if others or storage in live or not _reaches_reduction(node, readers):
        return False

    def is_cheaper(tensor: int) -> bool:
        own = owners[tensor]
        narrower = BY_NAME[group.values[tensor].spec.dtype].itemsize < BY_NAME[output.dtype].itemsize
        return narrower or own in live or bool(readers(own))

    return all(is_cheaper(use.tensor) for use in node.arguments[:inputs] if use.tensor in group.values)


def _reaches_reduction(node: Call, readers: Callable[[int], Sequence[Call]], steps: int = PROLOGUE_STEPS) -> bool:
    """Whether nothing but per-element operations and reductions uses a node, and one of the latter its points, after so
    many of the former at most.
    """
    found = readers(node.arguments[node.op.n_inputs].storage)
    if not all(isinstance(reader.op.body, (Pointwise, Reduction)) for reader in found):
        return False
    for reader in found:
        body = reader.op.body
        if isinstance(body, Reduction):
            if prod(body.shape) == numel(node):
                return True
        elif steps and numel(reader) == numel(node) and _reaches_reduction(reader, readers, steps - 1):
            return True
    return False
