"""What a whole graph shows and single operators do not: subgraphs that one kernel computes.

Each pattern is a row of :data:`PATTERNS`: the operator that a match ends with, and a function that looks at a call of
it and says what to call instead. What nobody uses any more afterwards goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_webgpu.engine.record import engine
from torch_webgpu.kernels import rotary as rotary_kernel

aten = torch.ops.aten

Call = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]


def apply(gm: GraphModule) -> dict[str, int]:
    """Rewrites a graph of ATen operators; how often each pattern was found."""
    found: dict[str, int] = {}
    for node in list(gm.graph.nodes):
        for name, (target, match) in PATTERNS.items():
            if node.op != "call_function" or node.target is not target or (call := match(node)) is None:
                continue
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(*call)
            made.meta = node.meta.copy()
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)
            found[name] = found.get(name, 0) + 1
            break
    if found:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return found


# Rotary embeddings


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``x * cos + cat((-x[..., D // 2:], x[..., :D // 2]), -1) * sin`` with the result's strides; x is (B, H, S, D)."""
    y = engine().empty(x.shape, x.dtype, x.device.index, strides)
    engine().record("rotary", (x, cos, sin), (y,), rotary_kernel.extern())
    return y


def rotary_call(node: Any) -> Call | None:
    """For the sum that ends a rotary embedding."""
    y = node.meta.get("val")
    if not is_plain(y, 4) or node.kwargs or y.shape[3] % 2:
        return None
    for straight, turned in either_way(node, aten.mul.Tensor):
        for x, cos in either_way_of(straight):
            for halves, sin in either_way_of(turned):
                ends = half_turned(halves, x, y.shape[3] // 2)
                if ends and all(is_plain(n.meta.get("val")) and fits(n.meta["val"], y) for n in (x, cos, sin)):
                    return rotary, (x, cos, sin, tuple(y.stride()))
    return None


def half_turned(node: Any, x: Any, half: int) -> bool:
    """Whether a node is ``cat((-x[..., half:], x[..., :half]), -1)``."""
    if (
        not calls(node, aten.cat.default)
        or len(node.args) != 2
        or node.args[1] not in (-1, 3)
        or len(node.args[0]) != 2
    ):
        return False
    negative, low = node.args[0]
    if not calls(negative, aten.neg.default):
        return False
    return is_slice(negative.args[0], x, half, 2 * half) and is_slice(low, x, 0, half)


def is_slice(node: Any, x: Any, start: int, stop: int) -> bool:
    """Whether a node is ``x[..., start:stop]``, the last dimension of 4 ending at ``stop`` or later."""
    if not calls(node, aten.slice.Tensor) or node.args[0] is not x:
        return False
    given = list(node.args[1:])
    dim, first, last, step = given + [0, 0, 1 << 62, 1][len(given) :]
    size = x.meta["val"].shape[3]
    return bool(dim in (-1, 3) and (first or 0) == start and min(last, size) == stop and step == 1)


def either_way(node: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """The two operands of a commutative operator in both orders, where both are calls of ``target``."""
    if len(node.args) == 2 and all(calls(a, target) for a in node.args):
        yield from either_way_of(node)


def calls(node: Any, target: Any) -> bool:
    """Whether a node is a call of ``target`` without keyword arguments."""
    return isinstance(node, Node) and node.target is target and not node.kwargs


def either_way_of(node: Any) -> Iterator[tuple[Any, Any]]:
    if len(node.args) == 2 and all(isinstance(a, Node) for a in node.args):
        one, other = node.args
        yield one, other
        yield other, one


def is_plain(value: Any, rank: int | None = None) -> bool:
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


def fits(t: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether a tensor is of the result's dtype and broadcasts to its shape."""
    shape = (1,) * (4 - t.dim()) + tuple(t.shape)
    return t.dtype == y.dtype and t.dim() <= 4 and all(n in (1, m) for n, m in zip(shape, y.shape))


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PATTERNS: dict[str, tuple[Any, Callable[[Node], Call | None]]] = {"rotary": (aten.add.Tensor, rotary_call)}
