"""From an operation to launches, cached on the operation per aliasing pattern.

Replaying a node is then packing its offsets and scalars into the launches' parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch_webgpu.ir.expr import WgslFunction, functions_of
from torch_webgpu.ir.operation import Extern, ForEach, Operation, Pointwise, Reduction, expressions
from torch_webgpu.target import Target
from torch_webgpu.wgsl.launch import Launch, Lowered
from torch_webgpu.wgsl.pointwise import build_pointwise
from torch_webgpu.wgsl.reduction import build_reduction

from .multi_tensor import lower_for_each


def lower(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    """Lowers ``op`` for such hosts; ``alias[k]``: the first argument that shares argument ``k``'s storage, or is the
    same list.
    """
    key: tuple[Any, ...] = (alias, target)
    lowered = op.lowered.get(key)
    if lowered is None:
        lowered = _lower(op, alias, target)
        functions = functions_of(expressions(op.body))
        if functions:
            lowered = replace(lowered, launches=tuple([_with(launch, functions) for launch in lowered.launches]))
        op.lowered[key] = lowered
    return lowered


def _with(launch: Launch, functions: Sequence[WgslFunction]) -> Launch:
    """A launch whose kernel declares a program's own functions. It is not trusted: who knows what they do."""
    kernel = launch.kernel
    body = "\n".join([*(function.text for function in functions), kernel.body])
    return replace(launch, kernel=replace(kernel, body=body, trusted=False))


def _lower(op: Operation, alias: tuple[int, ...], target: Target) -> Lowered:
    if isinstance(op.body, Pointwise):
        return Lowered((build_pointwise(op, alias, target.float16),))
    if isinstance(op.body, Reduction):
        return build_reduction(op, alias, target.subgroup_size, target.max_buffers)
    if isinstance(op.body, ForEach):
        return lower_for_each(op, alias, target)
    assert isinstance(op.body, Extern)
    return op.body.lower(op, alias, target, *op.body.arguments)
