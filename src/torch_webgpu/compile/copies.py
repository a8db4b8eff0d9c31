"""Copies of intermediate results, made where these are.

The partitioner puts what a backward graph takes of a forward pass, such as activations in the dtype in which they are
multiplied there, at the end of the forward graph. Until then the original waits in memory, and is read once more. A
copy that is the last to read its source moves up to where that is computed: it becomes part of the same kernel, and
the source's memory is free.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from .in_place import Writes, aliases, any_symbols, makes_alias
from .private import is_webgpu

aten = torch.ops.aten

COPIES = (aten._to_copy.default, aten.clone.default)


def apply(gm: GraphModule) -> int:
    """Moves copies of a graph of ATen operators up; how many."""
    order = {node: n for n, node in enumerate(gm.graph.nodes)}
    writes, moved = Writes(gm), 0
    for copy in list(gm.graph.nodes):
        if copy.op == "call_function" and copy.target in COPIES and is_no_larger(copy):
            moved += move_up(copy, order, writes)
    if moved:
        gm.graph.lint()
        gm.recompile()
    return moved


def is_no_larger(copy: Node) -> bool:
    """Whether a copy on webgpu takes no more memory than what it copies."""
    one, other = source_of(copy).meta.get("val"), copy.meta.get("val")
    if one is None or other is None or not is_webgpu(one) or not is_webgpu(other) or any_symbols(one):
        return False
    return bool(one.numel() == other.numel() and other.itemsize <= one.itemsize)


def move_up(copy: Node, order: dict[Node, int], writes: Writes) -> bool:
    """Moves ``copy``, and the views that lead to it alone, behind its source if nothing else needs that later."""
    chain, source = [copy], source_of(copy)
    while is_view(source) and len(source.users) == 1:
        chain.append(source)
        source = source_of(source)
    root = source
    while is_view(root):
        root = source_of(root)
    if root.op != "call_function" or order[copy] - order[source] <= len(chain) or writes.come_between(source, copy):
        return False
    readers = {user for view in aliases(root) for user in view.users}
    if any(user.op == "output" or order[user] > order[copy] for user in readers.difference(chain)):
        return False
    for node in reversed(chain):
        source.append(node)
        order[node] = order[source]
        source = node
    return True


def source_of(node: Node) -> Node:
    """Its first argument, which is a node."""
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def is_view(node: Node) -> bool:
    """Whether it is a view of its first argument, and of nothing else; an element of a tuple is none."""
    if node.op != "call_function" or node.target is operator.getitem or not makes_alias(node):
        return False
    return node.all_input_nodes == [node.args[0]]
