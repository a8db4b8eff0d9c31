"""Masks of attention that a graph makes of nothing but numbers: causal attention has no mask, and does half the work.

Models make such masks of ``arange``s where they cannot look at values, as transformers' do whenever they are compiled.
One is made here, on the CPU, and looked at.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_webgpu.aten.attention.sdpa import FUSED, FUSED_BACKWARD

from .in_place import any_symbols
from .matching import value_of
from .private import is_webgpu, without_fakes

MASK, IS_CAUSAL = {FUSED: 3, FUSED_BACKWARD: 4}, {FUSED: 5, FUSED_BACKWARD: 13}
"""The places of arguments of the operators."""
MOST_ELEMENTS = 1 << 26
"""Of a mask that is made."""


def apply(gm: GraphModule) -> int:
    """Rewrites attention of a graph of ATen operators; how many calls."""
    meanings: dict[Node, bool | None] = {}
    changed = 0
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in MASK or len(node.args) <= MASK[node.target]:
            continue
        mask, place = node.args[MASK[node.target]], IS_CAUSAL[node.target]
        if not isinstance(mask, Node) or (len(node.args) > place and node.args[place]):
            continue
        if mask not in meanings:
            meanings[mask] = meaning(gm, mask)
        if meanings[mask] is None:
            continue
        defaults = [a.default_value for a in node.target._schema.arguments][len(node.args) :]
        args = [*node.args, *defaults][: max(place + 1, len(node.args))]
        args[MASK[node.target]], args[place] = None, meanings[mask]
        node.args = tuple(args)
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


def meaning(gm: GraphModule, mask: Node) -> bool | None:
    """True for a causal mask, False for one that shows everything; None for others, and for those of inputs."""
    t = value_of(mask)
    if not is_webgpu(t) or t.dtype != torch.bool or t.dim() < 2 or any_symbols(t) or t.numel() > MOST_ELEMENTS:
        return None
    with without_fakes(), torch.no_grad():
        contents = computed(gm, mask)
        if contents is None:
            return None
        if bool(contents.all()):
            return False
        causal = torch.ones(contents.shape[-2:], dtype=torch.bool, device="cpu").tril()
        return True if contents.shape[-2] == contents.shape[-1] and bool((contents == causal).all()) else None


def depends_on_arguments_alone(node: Node) -> bool:
    """Whether a node is a call of an operator that gives the same for the same arguments, of sizes that are known."""
    op, value = node.target, value_of(node)
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return False
    return (
        isinstance(value, torch.Tensor) and not any_symbols(value) and torch.Tag.nondeterministic_seeded not in op.tags
    )


def computed(gm: GraphModule, node: Node) -> torch.Tensor | None:
    """A node's value, on the CPU; None if it depends on an input, or on a number drawn, or cannot be computed here."""
    members: set[Node] = set()
    waiting = [node]
    while waiting:
        n = waiting.pop()
        if n in members:
            continue
        if not depends_on_arguments_alone(n):
            return None
        members.add(n)
        waiting += n.all_input_nodes
    values: dict[Node, Any] = {}
    for n in gm.graph.nodes:
        if n in members:
            args, kwargs = map_arg((n.args, n.kwargs), values.__getitem__)
            if "device" in kwargs:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            try:
                values[n] = n.target(*args, **kwargs)
            except (RuntimeError, TypeError, ValueError):  # what the CPU has no kernel for
                return None
    return values[node] if isinstance(values[node], torch.Tensor) else None
