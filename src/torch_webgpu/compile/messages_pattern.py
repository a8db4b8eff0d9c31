"""Sums of a graph's messages: rows of nodes, gathered along edges and weighted, and added to other nodes' rows.

Written as people do, ``zeros.index_add(0, ends, x[starts] * weights[:, None])``, messages are as many rows as there are
edges: they are made, weighted and read again. Here they are gathered as they are added. Gradients are sums of the same
kind, the other way along the edges. What puts edges in the order of their ends is the same for all layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from torch_webgpu.aten.indexing.sums import add_gathered_in_order, order_of_vector, pays

from .in_place import aliases, origin
from .matching import NOT_COPIED, Replacement, aten, calls, either_way_of, is_plain, value_of

SUMS = (aten.index_add.default, aten.index_put.default, aten.scatter_add.default)
ZEROS = (aten.zeros_like.default, aten.new_zeros.default, aten.zeros.default)


class Gather(NamedTuple):
    """Rows of a matrix ``x`` that a vector of ``places`` names, by an operator of that name."""

    operator: str
    x: Node
    places: Node
    wraps: bool


def order(keys: torch.Tensor, operator: str, count: int, wraps: bool) -> torch.Tensor:
    """The points that ``keys`` name, in their order: int64, of as many."""
    return order_of_vector(operator, keys, count, wraps)


def summed(
    base: torch.Tensor | None,
    count: int,
    x: torch.Tensor,
    places: torch.Tensor,
    factors: torch.Tensor | None,
    points: torch.Tensor,
    operator: str,
    wraps: bool,
) -> torch.Tensor:
    """``base``, or zeros (count, features), with ``x[places] * factors`` added to the rows that ``points`` name."""
    sums = x.new_zeros((count, x.shape[1])) if base is None else base.clone(memory_format=torch.contiguous_format)
    add_gathered_in_order(operator, sums, x, places, wraps, factors, points)
    return sums


def match(node: Any) -> Replacement | None:
    """For a sum of rows by an index, of rows that are gathered and perhaps weighted for it alone."""
    base, keys, terms, wraps = parts(node)
    result = value_of(node)
    if keys is None or not is_plain(result, 2) or result.dtype != torch.float32 or not result.is_contiguous():
        return None
    if not pays(result, value_of(keys).shape[0], result.shape[0]):
        return None
    rows, factors = weighted(terms, value_of(keys).shape[0])
    found = gather(unexpanded(rows))
    # Zeros may be made like what is added.
    ours = (node, base, terms, rows)
    if found is None or not all(user in ours for n in (terms, rows, unexpanded(rows)) for user in n.users):
        return None
    points = ordered(node, keys, SUM_NAMES[node.target], result.shape[0], wraps)
    if points is None:
        return None
    is_zero = base.target in ZEROS and base.op == "call_function"
    first = (None if is_zero else base, result.shape[0])
    return summed, (*first, found.x, found.places, factors, points, found.operator, found.wraps)


SUM_NAMES = {target: target.overloadpacket.__name__ for target in SUMS}


def parts(node: Node) -> tuple[Any, Any, Any, bool]:
    """What a sum adds to, the vector of its keys, what it adds, and whether negative keys count from the end; None for
    what is no sum of rows.
    """
    nothing = None, None, None, False
    if node.kwargs or not isinstance(node.args[0], Node):
        return nothing
    if node.target is aten.index_put.default:
        base, indices, terms, *accumulates = node.args
        found = base, vector(indices[0]) if len(indices) == 1 else None, terms, True  # type: ignore[arg-type,index]
        return found if accumulates == [True] else nothing
    base, dim, index, terms = node.args
    return (base, vector(index), terms, False) if dim in (0, -2) else nothing


def vector(index: Any) -> Node | None:
    """The vector that an index is, or that one of as many columns repeats."""
    value = value_of(index)
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int64, torch.int32):
        return None
    if value.dim() == 2 and value.stride(1) == 0 and calls(index, aten.expand.default):
        column = index.args[0]
        rows = column.args[0] if calls(column, aten.unsqueeze.default, aten.view.default) else None
        repeated = value_of(rows)
        same = isinstance(repeated, torch.Tensor) and tuple(repeated.shape) == (value.shape[0],)
        return rows if same and value_of(column).shape == (value.shape[0], 1) else None
    return index if value.dim() == 1 else None


def weighted(terms: Any, count: int) -> tuple[Any, Any]:
    """What ``terms`` are of: gathered rows, and a factor for each, or None."""
    if not calls(terms, aten.mul.Tensor):
        return terms, None
    for rows, factors in either_way_of(terms):
        value = value_of(factors)
        is_factor = is_plain(value) and value.shape == (count, 1) and value.dtype == torch.float32
        if is_factor and gather(unexpanded(rows)) is not None:
            return rows, factors
    return None, None


def gather(node: Any) -> Gather | None:
    """How a node gathers rows of a matrix, if it does."""
    if calls(node, aten.index.Tensor) and len(node.args[1]) == 1:
        found = Gather("index", node.args[0], vector(node.args[1][0]), True)  # type: ignore[arg-type]
    elif calls(node, aten.index_select.default, aten.gather.default) and node.args[1] in (0, -2):
        name = node.target.overloadpacket.__name__
        found = Gather(name, node.args[0], vector(node.args[2]), False)  # type: ignore[arg-type]
    else:
        return None
    x = value_of(found.x)
    whole = is_plain(x, 2) and x.dtype == torch.float32 and value_of(node).shape[1:] == x.shape[1:]
    return found if whole and found.places is not None and value_of(node).dim() == 2 else None


def unexpanded(node: Any) -> Any:
    """What a node is, but for an expansion to the shape that it has."""
    same = calls(node, aten.expand.default) and value_of(node).shape == value_of(node.args[0]).shape
    return node.args[0] if same else node


def ordered(node: Node, keys: Node, operator: str, count: int, wraps: bool) -> Node | None:
    """The points in the order of ``keys``, before ``node``: those that a node before it has made, if nothing writes
    into the keys in this graph.
    """
    if any(user.is_impure() for alias in aliases(origin(keys)) for user in alias.users if user.op == "call_function"):
        return None
    arguments = (keys, operator, count, wraps)
    for user in keys.users:
        if user.target is order and user.args == arguments:
            return user
    with node.graph.inserting_before(node):
        made = node.graph.call_function(order, arguments)
    made.meta = {name: value for name, value in node.meta.items() if name not in NOT_COPIED}
    made.meta["val"] = value_of(keys).new_empty(value_of(keys).shape, dtype=torch.int64)
    return made
