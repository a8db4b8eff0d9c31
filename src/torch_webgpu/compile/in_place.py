"""Writes of a part of an input, which a functional graph makes of a copy of all of it, done where they belong.

AOTAutograd's graphs are functional but for the ``copy_`` of new contents into inputs at their end: a key written into a
cache becomes a copy of the cache, and the copy's way back.

Inductor's ``fx_passes/reinplace.py`` does the same for its own lowerings: it marks functional nodes whose memory a
later pass may take. Here there is no later pass, so that nodes are replaced by operators that write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .private import is_webgpu

aten = torch.ops.aten


def apply(gm: GraphModule) -> int:
    """Rewrites a graph of ATen operators; how many copies are gone."""
    order = {node: n for n, node in enumerate(gm.graph.nodes)}
    count = 0
    for copy in list(gm.graph.nodes):
        if copy.op != "call_function" or copy.target is not aten.copy_.default or copy.kwargs:
            continue
        target, new = copy.args[:2]
        if can_be_written(target, new, copy, order):
            with gm.graph.inserting_before(new):
                written = WRITES[new.target](gm, new)
            new.replace_all_uses_with(written)
            copy.replace_all_uses_with(written)
            gm.graph.erase_node(copy)
            gm.graph.erase_node(new)
            count += 1
    if count:
        gm.recompile()
    return count


def can_be_written(target: Any, new: Any, copy: Node, order: Mapping[Node, int]) -> bool:
    """Whether ``new``, which ``copy`` copies into the input ``target``, can be computed there."""
    arguments: tuple[Any, ...] = new.args if isinstance(new, Node) and new.target in WRITES else (None,)
    if arguments[0] is not target or target.op != "placeholder":
        return False
    one, other = target.meta.get("val"), new.meta.get("val")
    if not is_webgpu(one) or one.dtype != other.dtype or one.shape != other.shape or any_symbols(one):
        return False
    # Nothing reads the old contents later, nor while the new ones are written.
    old = aliases(target, copy)
    users = [user for view in old for user in view.users if user is not copy]
    if any(order[user] > order[new] for user in users) or sum(a in old for a in new.all_input_nodes) != 1:
        return False
    # The copy that there was is nobody's but the graph's.
    return sum(a is target for a in arguments) == 1 and not is_visible(new)


def aliases(node: Node, leaving_out: Node | None = None) -> list[Node]:
    """A node and all that may be views of it."""
    views = [node]
    for alias in views:
        users = [user for user in alias.users if user is not leaving_out and makes_alias(user)]
        views += [user for user in users if user not in views]
    return views


def is_visible(node: Node) -> bool:
    """Whether a program can see what ``node`` gives, or a view of it."""
    return any(user.op == "output" for alias in aliases(node) for user in alias.users)


def makes_alias(node: Node) -> bool:
    """Whether a node may return a view of an argument; so may all that is no ATen operator."""
    schema = getattr(node.target, "_schema", None)
    return node.op != "output" and (schema is None or any(r.alias_info is not None for r in schema.returns))


class Writes:
    """Where a graph writes, for what moves reads of nodes to later ones.

    PyTorch's mutation regions (``torch/_inductor/pattern_matcher.py``) end at every write, whatever it is to. In a
    decoding step every layer writes into its cache: of 126 reads that patterns move there, 38 cross such a write, to
    other memory, and would have to stay.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._order = {node: n for n, node in enumerate(gm.graph.nodes)}
        self._places: dict[Node, list[int]] = {}
        for node, n in self._order.items():
            for target in targets(node):
                self._places.setdefault(origin(target), []).append(n)

    def replace(self, node: Node, made: Node) -> None:
        """``made`` takes the place of ``node``."""
        self._order[made] = self._order[node]

    def come_between(self, source: Node, user: Node) -> bool:
        """Whether ``user``, which did not take ``source``, would find something else there than who did."""
        places = self._places.get(origin(source), ())
        return any(self._order[source] < n < self._order[user] for n in places)


def targets(node: Node) -> Iterator[Node]:
    """What a node writes to."""
    if node.op != "call_function" or not node.is_impure():
        return
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        yield from node.all_input_nodes[:1]
        return
    written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    given = {a.name: value for a, value in zip(schema.arguments, node.args)} | node.kwargs
    for name in written & given.keys():
        value = given[name]
        yield from [n for n in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(n, Node)]


def origin(node: Node) -> Node:
    """What a node's result may lie in the memory of."""
    while node.op == "call_function" and makes_alias(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def any_symbols(t: torch.Tensor) -> bool:
    return not all(isinstance(n, int) for n in (*t.shape, *t.stride()))


def same_arguments(target: Any) -> Callable[[GraphModule, Node], Node]:
    def write(gm: GraphModule, node: Node) -> Node:
        return like(gm.graph.call_function(target, node.args, node.kwargs), node.meta["val"])

    return write


def into_view(view: Any) -> Callable[[GraphModule, Node], Node]:
    """For ``scatter(x, src, …)``, which is ``x`` with ``view(x, …)`` replaced by ``src``."""

    def write(gm: GraphModule, node: Node) -> Node:
        x, src, *where = node.args
        assert isinstance(x, Node)
        part = view(x.meta["val"], *where, **node.kwargs)
        place = like(gm.graph.call_function(view, (x, *where), node.kwargs), part)
        copied = like(gm.graph.call_function(aten.copy_.default, (place, src)), part)
        return like(gm.graph.call_function(after, (x, copied)), x.meta["val"])

    return write


def after(x: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """``x`` when ``written``, a part of it, is: whoever uses it does so after that."""
    return x


def like(node: Node, value: Any) -> Node:
    node.meta["val"] = value
    return node


WRITES: dict[Any, Callable[[GraphModule, Node], Node]] = {
    **{
        functional: same_arguments(mutating)
        for functional, mutating in (
            (aten.index_copy.default, aten.index_copy_.default),
            (aten.index_put.default, aten.index_put_.default),
            (aten.index_add.default, aten.index_add_.default),
            (aten.index_fill.int_Scalar, aten.index_fill_.int_Scalar),
            (aten.index_fill.int_Tensor, aten.index_fill_.int_Tensor),
            (aten.scatter.src, aten.scatter_.src),
            (aten.scatter.value, aten.scatter_.value),
            (aten.scatter_add.default, aten.scatter_add_.default),
        )
    },
    aten.slice_scatter.default: into_view(aten.slice.Tensor),
    aten.select_scatter.default: into_view(aten.select.int),
}
"""By functional operator, what writes its result in place of its first argument, and gives it."""
