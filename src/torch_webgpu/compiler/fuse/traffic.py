"""Where fusing large tensors would move more bytes than it saves.

A value that joins a group long before what reads it is written and read again, where its own readers would have
computed it as they need it. A product that stores its result in a wider type, for per-element operations that are not
part of its kernel, stores and has them read twice as much. (GELU's gradient under autocast: half of its traffic.)
"""

from __future__ import annotations

from collections.abc import Iterable
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
