"""Which nodes of a graph are parts of plans, and which run between them.

Between plans runs what computes on the CPU, exchanges tensors with other processes, brings tensors over or takes them
away, makes tensors whose size depends on data, calls functions that call others (``torch.cond``), and whatever a trace
has refused.

PyTorch's ``CapabilityBasedPartitioner`` makes as few parts as it can, in any order. Here, what needs no plan's results
runs before all plans, and what only writes CPU tensors after them, so that a plan is cut only where it has to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torch_webgpu.dtypes import BY_TORCH

from .in_place import makes_alias
from .private import unknown_sizes

COLLECTIVES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor"))
"""The namespaces of operators over several processes: each is called on every rank, in the same order."""
REFUSED = "webgpu_refused"
"""In the meta data of a node: why it is no part of a plan."""


def refuse(node: Node, error: Exception) -> None:
    """From now on the node runs between plans."""
    node.meta[REFUSED] = first_line(error)


def refuse_storage_only(gm: GraphModule, error: Exception) -> bool:
    """Has whatever takes or makes tensors of dtypes that kernels do not compute with (complex128, 8-bit floats) run
    between plans: none of a plan's inputs and results can be one. Whether there is any.
    """
    holders = [
        node
        for node in gm.graph.nodes
        if node.op != "output" and any(map(holds_storage_only, (node, *node.all_input_nodes)))
    ]
    for node in holders:
        refuse(node, error)
    return bool(holders)


def holds_storage_only(node: Node) -> bool:
    """Whether it stands for a tensor, or several, of a dtype without kernels."""
    return any(isinstance(v, torch.Tensor) and v.dtype not in BY_TORCH for v in values(node.meta.get("val")))


def first_line(error: Exception) -> str:
    """Without what FX adds: where in the graph and in the program it happened."""
    return str(error).partition("\n")[0]


def functionalized() -> tuple[Any, ...]:
    """What AOTAutograd makes of an operator that writes into its arguments: copies of them, and the operator on these.

    These are operators as others are, whatever the names.
    """
    higher_order = torch.ops.higher_order
    return higher_order.auto_functionalized, higher_order.auto_functionalized_v2


def reason(node: Node) -> str | None:
    """Why a node runs between plans, or None."""
    if node.op != "call_function":
        return "it is a call of a module" if node.op in ("call_module", "call_method") else None
    if REFUSED in node.meta:
        return node.meta[REFUSED]
    if node.target is getitem and isinstance(node.args[0], Node):
        return reason(node.args[0]) if node.args[0].op != "placeholder" else None  # one of several results stays there
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in functionalized():
        return "it calls functions of the program's"
    if is_collective(node):
        return "it is a collective"
    results = [v for v in values(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    if any(v.device.type != "webgpu" for v in results):
        return "it computes on the CPU"
    for source in node.all_input_nodes:
        for v in values(source.meta.get("val")):
            # A CPU tensor without dimensions is a number: it travels with the plan's inputs.
            if isinstance(v, torch.Tensor) and v.device.type != "webgpu" and (v.dim() or is_transfer(node)):
                return "it moves a CPU tensor"
    tags = getattr(node.target, "tags", ())
    if torch.Tag.data_dependent_output in tags or (torch.Tag.dynamic_output_shape in tags and sizes_anew(node)):
        return "its result's size or value depends on data"
    return None


def is_collective(node: Node) -> bool:
    """Whether it exchanges tensors with other processes, or waits for that."""
    return getattr(node.target, "namespace", None) in COLLECTIVES


def sizes_anew(node: Node) -> bool:
    """Whether its result's size depends on data as no argument's does: that of an index does only if it is a mask."""
    known = {symbol for source in node.all_input_nodes for symbol in symbols(source)}
    return not symbols(node) <= known


def symbols(node: Node) -> set[Any]:
    """The sizes in what a node stands for that depend on data."""
    return set().union(*[unknown_sizes(v) for v in values(node.meta.get("val")) if v is not None])


def is_transfer(node: Node) -> bool:
    return node.target in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten.copy.default)


def values(value: Any) -> Iterator[Any]:
    """What a node stands for, one by one."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from values(v)
    else:
        yield value


@dataclass(frozen=True)
class GraphPart:
    """Some nodes of a graph, in order, as a graph of their own: ``takes`` are its inputs, ``gives`` its results, and
    ``frees`` what nobody needs after it. ``planned``: it is to be one plan.
    """

    gm: GraphModule
    takes: tuple[Node, ...]
    gives: tuple[Node, ...]
    frees: tuple[Node, ...]
    planned: bool


def split(gm: GraphModule) -> list[GraphPart] | None:
    """The graph as parts that run one after the other; None if it is one plan.

    What needs no plan's results runs before all plans, what only writes CPU tensors that were given after all.
    """
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    reasons = {node: reason(node) for node in nodes}
    if not any(reasons.values()) and not has_idle_numbers(gm):
        return None
    early: dict[Node, None] = {}  # in order
    late = last_writes(reasons)
    groups: list[tuple[bool, list[Node]]] = []
    for node, why in reasons.items():
        if node in late:
            continue
        on_host = why is not None or not makes_tensors(node)
        if on_host and not is_impure(node) and all(s in early for s in node.all_input_nodes if s in reasons):
            early[node] = None
            continue
        planned = why is None
        if not groups or groups[-1][0] != planned:
            groups.append((planned, []))
        groups[-1][1].append(node)
    return _parts(gm, [*([(False, list(early))] if early else []), *groups, *([(False, late)] if late else [])])


def last_writes(reasons: Mapping[Node, str | None]) -> list[Node]:
    """The nodes that copy CPU tensors into CPU tensors that were given, as of nodes in order and why they run between
    plans: an optimizer's counters. Nothing that is no such node comes after them and sees what they write.
    """
    order = {node: n for n, node in enumerate(reasons)}
    writes: list[Node] = []
    for node in reversed(order):
        if reasons[node] is None:
            continue
        target = node.args[0] if node.target is torch.ops.aten.copy_.default else None
        given = [v for s in node.all_input_nodes for v in values(s.meta.get("val"))]
        on_host = all(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in given)
        if isinstance(target, Node) and target.op == "placeholder" and on_host and not node.users:
            others = [user for user in target.users if user is not node and user not in writes]
            if not any(user.op == "output" or order[user] > order[node] or makes_alias(user) for user in others):
                writes.append(node)
                continue
        if is_impure(node):
            break
    return writes[::-1]


def has_idle_numbers(gm: GraphModule) -> bool:
    """Whether a number among the inputs reaches no tensor, such as how many tokens there are: it needs no plan."""
    inputs = [(node, node.meta.get("val")) for node in gm.graph.nodes if node.op == "placeholder"]
    sizes = {str(n) for _, v in inputs if isinstance(v, torch.Tensor) for n in (*v.shape, *v.stride())}
    numbers = [(node, v) for node, v in inputs if isinstance(v, (torch.SymInt, torch.SymFloat))]
    return any(str(v) not in sizes and not reaches_tensors(node) for node, v in numbers)


def reaches_tensors(node: Node) -> bool:
    """Whether a tensor is made of a number, or of numbers that are made of it."""
    left, seen = [node], {node}
    while left:
        for user in left.pop().users:
            if user.op == "output" or user in seen:
                continue
            if makes_tensors(user):
                return True
            seen.add(user)
            left.append(user)
    return False


def unplanned(parts: Iterable[GraphPart]) -> Iterator[tuple[str, str]]:
    """What runs between plans, and why."""
    for part in parts:
        for node in part.gm.graph.nodes:
            why = reason(node)
            if why is not None and node.target is not getitem:
                yield str(node.target), why


def _parts(gm: GraphModule, groups: Sequence[tuple[bool, Sequence[Node]]]) -> list[GraphPart]:
    (output,) = [node for node in gm.graph.nodes if node.op == "output"]
    last: dict[Node, int] = {}  # the last group that needs a value
    for number, (_, members) in enumerate(groups):
        for node in members:
            last |= dict.fromkeys(node.all_input_nodes, number)
    last |= dict.fromkeys(output.all_input_nodes, len(groups))
    parts = []
    for number, (planned, members) in enumerate(groups):
        own = set(members)
        outside = dict.fromkeys(s for node in members for s in node.all_input_nodes if s not in own)
        takes = tuple([s for s in outside if s.op != "get_attr"])
        gives = tuple([node for node in members if last.get(node, -1) > number])
        frees = tuple([s for s in takes if last[s] == number])
        parts.append(GraphPart(subgraph(gm, members, outside, gives), takes, gives, frees, planned))
    return parts


def subgraph(gm: GraphModule, members: Sequence[Node], outside: Iterable[Node], gives: Sequence[Node]) -> GraphModule:
    """Some nodes of a graph, in order, as a function of those ``outside``."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for source in outside:
        if source.op == "get_attr":
            copies[source] = graph.node_copy(source)
        else:
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = source.meta
    for node in members:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta = node.meta  # shared: what is refused in a part is refused in the whole
    graph.output(tuple([copies[node] for node in gives]))
    return GraphModule(gm, graph)


def makes_tensors(node: Node) -> bool:
    return any(isinstance(v, torch.Tensor) for v in values(node.meta.get("val")))


def is_impure(node: Node) -> bool:
    """Whether it does more than return something, so that it keeps its place."""
    if node.target is getitem:
        return False
    schema = getattr(node.target, "_schema", None)
    seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return (
        is_collective(node)
        or seeded
        or (schema is None and makes_tensors(node))
        or (schema is not None and schema.is_mutable)
    )
