"""What depends on parameters and buffers alone, such as weights cast for autocast, is computed once: ``freezing`` of
Inductor's options. As there, later writes to them are not seen; other tensors in their place are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import getitem
from typing import Any
from weakref import ref

import torch
from torch.fx import GraphModule, Node

from .in_place import aliases, makes_alias
from .partition import is_impure, reason, subgraph

Function = Callable[..., Any]


class Frozen:
    """A graph whose arguments at ``places`` are parameters: ``constants`` computes from these what ``rest`` takes after
    the arguments at ``others``.

    Parameters that die take with them what was computed from them.
    """

    def __init__(self, places: Sequence[int], others: Sequence[int], constants: Function, rest: Function) -> None:
        self._places, self._others = places, others
        self._constants, self._rest = constants, rest
        self._kept: dict[tuple[int, ...], tuple[Sequence[torch.Tensor], list[ref[torch.Tensor]]]] = {}

    def __call__(self, *args: Any) -> Any:
        parameters = [args[k] for k in self._places]
        key = tuple(map(id, parameters))
        kept = self._kept.get(key) or self._computed(key, parameters)
        return self._rest(*[args[k] for k in self._others], *kept[0])

    def _computed(self, key: tuple[int, ...], parameters: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """For tensors that are new here."""

        def forget(_: object) -> None:
            self._kept.pop(key, None)

        self._kept[key] = found = self._constants(*parameters), [ref(t, forget) for t in parameters]
        return found


def freeze(
    gm: GraphModule, is_parameter: Callable[[Node], bool], compiled: Callable[[GraphModule], Function]
) -> Function:
    """A graph of ATen operators as a function: ``compiled``, in two parts if one of them is worth it."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    parameters = [node for node in inputs if is_parameter(node) and not is_written(node)]
    kept = computed_from(gm, parameters)
    if not kept:
        return compiled(gm)
    members = ancestors(kept)
    takes = [node for node in parameters if any(user in members for user in node.users)]
    constants = subgraph(gm, [node for node in gm.graph.nodes if node in members], takes, kept)
    for node in kept:
        with gm.graph.inserting_before(next(n for n in gm.graph.nodes if n.op != "placeholder")):
            constant = gm.graph.placeholder(node.name)
        constant.meta = node.meta
        node.replace_all_uses_with(constant)
    gm.graph.eliminate_dead_code()
    others = [k for k, node in enumerate(inputs) if node.users or node not in takes]
    for k, node in enumerate(inputs):
        if k not in others:
            gm.graph.erase_node(node)
    gm.recompile()
    return Frozen([inputs.index(node) for node in takes], others, compiled(constants), compiled(gm))


def computed_from(gm: GraphModule, parameters: Collection[Node]) -> list[Node]:
    """The nodes that depend on parameters alone and that others need, in order; of views what they are views of.

    What the graph returns is computed anew: the program may write to it.
    """
    depends: dict[Node, bool] = dict.fromkeys(parameters, True)  # or on nothing
    for node in gm.graph.nodes:
        if is_pure(node) and all(source in depends for source in node.all_input_nodes):
            depends[node] = any(depends[source] for source in node.all_input_nodes)
    stays: set[Node] = set()
    returned: set[Node] = set()
    kept = []
    for node in reversed(gm.graph.nodes):
        if any(user.op == "output" or (user in returned and is_view(user)) for user in node.users):
            returned.add(node)
        is_needed = any(user in stays for user in node.users)
        if not depends.get(node) or (is_needed and (is_view(node) or node in returned)):
            stays.add(node)
        elif is_needed and node not in parameters:
            kept.append(node)
    return kept[::-1]


def ancestors(nodes: Collection[Node]) -> set[Node]:
    """Nodes and all that they are computed from, but for inputs."""
    reached: set[Node] = set()
    rest = list(nodes)
    while rest:
        node = rest.pop()
        if node.op != "placeholder" and node not in reached:
            reached.add(node)
            rest += node.all_input_nodes
    return reached


def is_pure(node: Node) -> bool:
    """Whether a node is part of a plan, and always gives the same."""
    is_operator = isinstance(node.target, torch._ops.OpOverload) or node.target is getitem
    return node.op == "call_function" and is_operator and not is_impure(node) and reason(node) is None


def is_view(node: Node) -> bool:
    """Whether a node's result lies in the memory of an argument's, or may."""
    return is_view(node.all_input_nodes[0]) if node.target is getitem else makes_alias(node)


def is_written(node: Node) -> bool:
    """Whether a graph writes to an input."""
    users = {user for alias in aliases(node) for user in alias.users}
    return any(is_impure(user) for user in users if user.op == "call_function")
