"""FlexAttention written out: ``torch.nn.attention.flex_attention`` in a compiled graph.

It is one node that calls functions of the program's: for scores, and for which of them count. PyTorch has its meaning
in operators (``sdpa_dense``), also of its gradients. These take the node's place, so that they are part of a plan, and
fuse: what the program does to scores with the product before and the softmax after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from operator import getitem
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from .matching import NOT_COPIED, aten, called
from .partition import values
from .private import fake_mode_of, is_webgpu, without_fakes

MEANINGS = {flex_attention: sdpa_dense, flex_attention_backward: sdpa_dense_backward}
READ = list(signature(sdpa_dense_backward).parameters).index("score_mod_other_buffers")
"""Where among the backward's arguments the tensors are that functions of scores read."""
CONSTANTS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)


def apply(gm: GraphModule) -> dict[str, int]:
    """Writes out what computes on webgpu; how often, by name."""
    nodes = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in MEANINGS]
    nodes = [node for node in nodes if any(map(is_webgpu, values(node.meta.get("val"))))]
    for node in nodes:
        write_out(gm, node)
    if nodes:
        gm.graph.eliminate_dead_code()
        gm.delete_all_unused_submodules()
        gm.recompile()
    return {"FlexAttention": len(nodes)} if nodes else {}


def write_out(gm: GraphModule, node: Node) -> None:
    """Puts the operators that a node stands for in its place."""
    functions = {n: getattr(gm, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"}
    functions = {n: function for n, function in functions.items() if isinstance(function, GraphModule)}
    inputs = [n for n in node.all_input_nodes if n not in functions]
    meaning: Any = MEANINGS[node.target]  # type: ignore[index]

    def call(*given: Any) -> Any:
        known = functions | dict(zip(inputs, given, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
        return meaning(*args, **kwargs)

    learned = with_gradients(node)
    with fake_mode_of([n.meta["val"] for n in inputs]), torch.no_grad():
        examples = [n.meta["val"].detach().requires_grad_() if n in learned else n.meta["val"] for n in inputs]
        traced = make_fx(call)(*examples)
        with_numbers(traced, next(filter(is_webgpu, examples)).device)
    without_copies(traced)
    places = [n for n in traced.graph.nodes if n.op == "placeholder"]
    before = set(gm.graph.nodes)
    with gm.graph.inserting_before(node):
        results: Any = gm.graph.graph_copy(traced.graph, dict(zip(places, inputs, strict=True)))
    place = {k: v for k, v in node.meta.items() if k not in NOT_COPIED}  # errors name the program's line
    for new in [n for n in gm.graph.nodes if n not in before]:
        new.meta = place | {k: v for k, v in new.meta.items() if k in NOT_COPIED}
    replace(gm.graph, node, results)


def with_gradients(node: Node) -> set[Node]:
    """The tensors that the program's functions read and whose gradients a node gives: its meaning asks them."""
    if node.target is not flex_attention_backward:
        return set()
    *_, of_read = node.meta["val"]
    read: Any = node.args[READ]
    return {n for n, gradient in zip(read, of_read, strict=True) if isinstance(gradient, torch.Tensor)}


def with_numbers(traced: GraphModule, device: torch.device) -> None:
    """Makes numbers that are tensors of the host, or are to be some, tensors of the device."""
    for node in list(traced.graph.nodes):
        if node.op == "get_attr":
            number = getattr(traced, str(node.target))
            with without_fakes():
                value = number.item()
            same = [node, *(user for user in node.users if user.target in CONSTANTS)]
            put_number(traced.graph, same, value, number.dtype, device)
        elif node.target is aten._to_copy.default and not isinstance(node.args[0], Node):
            put_number(traced.graph, [node], node.args[0], node.meta["val"].dtype, device)


def put_number(graph: Graph, nodes: Sequence[Node], value: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Puts a number in the place of nodes, of which each is computed from the one before it alone."""
    with graph.inserting_before(nodes[0]):
        full = graph.call_function(aten.full.default, ([], value), {"dtype": dtype, "device": device})
    full.meta["val"] = called(full)
    for node in reversed(nodes):
        node.replace_all_uses_with(full)
        graph.erase_node(node)


def without_copies(traced: GraphModule) -> None:
    """Leaves out copies that lie as what they copy: heads that are repeated once."""
    for node in list(traced.graph.nodes):
        if node.target is aten.clone.default:
            (source,) = node.all_input_nodes
            one, other = source.meta["val"], node.meta["val"]
            if one.shape == other.shape and one.stride() == other.stride():
                node.replace_all_uses_with(source)
                traced.graph.erase_node(node)


def replace(graph: Graph, node: Node, results: Any) -> None:
    """Puts results in the place of those of a node, which are asked for one by one."""
    for user in list(node.users):
        assert user.target is getitem, f"{user} takes several results of {node} as one"
        result = results[user.args[1]]
        if isinstance(result, Node):
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        elif result is not None:
            replace(graph, user, result)
    if not node.users:
        graph.erase_node(node)
