"""What patterns ask of the nodes of a graph of ATen operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeGuard

import torch
from torch.fx import Node
from torch.fx.node import map_arg

aten = torch.ops.aten

Replacement = tuple[Callable[..., Any], tuple[Any, ...]]
"""What to call instead of a node, and with which arguments."""
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)
NOT_COPIED = ("val", "tensor_meta")
"""What a node tells of its own result alone."""
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.alias.default)

BY_LAYOUT = (aten.as_strided.default, aten.as_strided_.default, aten.set_.source_Tensor_storage_offset)
"""Operators that see how their operands lie in memory."""

ATTENTION = (
    aten._scaled_dot_product_fused_attention_overrideable.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
)


def calls(node: Any, *targets: Any) -> bool:
    """Whether a node is a call of one of these operators without keyword arguments."""
    return isinstance(node, Node) and node.target in targets and not node.kwargs


def either_way(node: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """The two operands of a commutative operator in both orders, where both are calls of ``target``."""
    if len(node.args) == 2 and all(calls(a, target) for a in node.args):
        yield from either_way_of(node)


def either_way_of(node: Any) -> Iterator[tuple[Any, Any]]:
    if len(node.args) == 2 and all(isinstance(a, Node) for a in node.args):
        one, other = node.args
        yield one, other
        yield other, one


def is_plain(value: Any, rank: int | None = None) -> TypeGuard[torch.Tensor]:
    """Whether a node is a floating tensor on webgpu with a layout without symbols, dense where a rank is asked for."""
    if not isinstance(value, torch.Tensor) or value.device.type != "webgpu" or value.dtype not in FLOATS:
        return False
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return False
    return rank is None or (value.dim() == rank and value.numel() > 0 and is_permuted(value))


def is_permuted(t: torch.Tensor) -> bool:
    """Whether its elements lie without gaps, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def unviewed(node: Any) -> Any:
    """What a node is a view of, in other dimensions."""
    while calls(node, *VIEWS):
        node = node.args[0]
    return node


def uncast(node: Any) -> Any:
    """What a node is a view of, in other dimensions or another floating type."""
    while True:
        node = unviewed(node)
        if not is_cast(node) or not is_plain(value_of(node)) or not is_plain(value_of(node.args[0])):
            return node
        node = node.args[0]


def is_cast(node: Any, to: Collection[torch.dtype] = FLOATS) -> bool:
    """Whether a node is a floating tensor as one of these dtypes, and nothing else."""
    if not isinstance(node, Node) or node.target is not aten._to_copy.default or node.kwargs.get("dtype") not in to:
        return False
    one, other = value_of(node), value_of(node.args[0])
    others = node.kwargs.keys() - {"dtype", "layout", "device"}
    return not others and other.dtype in FLOATS and (one.device, one.layout) == (other.device, other.layout)


def new_call(before: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call before a node for which it is needed, with what it gives."""
    with before.graph.inserting_before(before):
        call = before.graph.call_function(target, args, kwargs)
    call.meta = {key: value for key, value in before.meta.items() if key not in NOT_COPIED}
    call.meta["val"] = called(call)
    return call


def called(node: Node) -> Any:
    """What a node's operator makes of the fake tensors that its arguments are."""
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    assert callable(node.target)
    with torch.no_grad():
        return node.target(*args, **kwargs)


def value_of(node: Any) -> Any:
    """An example of what a node gives, which is a fake tensor or a number; None for what is no node."""
    return node.meta.get("val") if isinstance(node, Node) else None


def uses(node: Node) -> Iterator[Node]:
    """The nodes that use a node, or a view of it in other dimensions."""
    for user in node.users:
        if calls(user, *VIEWS):
            yield from uses(user)
        else:
            yield user
