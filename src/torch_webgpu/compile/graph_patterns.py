"""What a whole graph shows and single operators do not: subgraphs that one kernel computes.

Each pattern is a row of :data:`PATTERNS`: the operators that a match ends with, and a function that looks at a call of
one and says what to call instead. What nobody uses any more afterwards goes.

The functions are not patterns of Inductor's ``PatternMatcherPass``. Their conditions are mostly about layouts, sizes
and users, which would all stand in its ``extra_check``; a commutative operator, an optional cast or a view would each
double the patterns, of which a norm has three. And importing its module takes a second or more, which a process that
compiles would pay for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from . import (
    attention_pattern,
    grouped_heads,
    integer_weights_pattern,
    messages_pattern,
    projection_pattern,
    rotary_pattern,
)
from .in_place import Writes
from .matching import Replacement, aten


def apply(gm: GraphModule) -> dict[str, int]:
    """Rewrites a graph of ATen operators; how often each pattern was found."""
    matches: dict[str, int] = {}
    writes = Writes(gm)
    for node in list(gm.graph.nodes):
        for name, (targets, match) in PATTERNS.items():
            if node.op != "call_function" or node.target not in targets or (call := match(node)) is None:
                continue
            if any(writes.come_between(source, node) for source in nodes_of(call[1]) - set(node.all_input_nodes)):
                continue
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(*call)
            made.meta = node.meta.copy()
            writes.replace(node, made)
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)
            matches[name] = matches.get(name, 0) + 1
            break
    if matches:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return matches


def nodes_of(arguments: Any) -> set[Node]:
    found: set[Node] = set()
    map_arg(arguments, found.add)
    return found


PATTERNS: dict[str, tuple[tuple[Any, ...], Callable[[Node], Replacement | None]]] = {
    "rotary": ((aten.add.Tensor,), rotary_pattern.match),
    "rotary's gradient": ((aten.add.Tensor,), rotary_pattern.match_gradient),
    "rounded rotary": ((aten._to_copy.default,), rotary_pattern.match_rounded),
    "rotary into a cache": ((aten.index_copy_.default,), rotary_pattern.match_write),
    "grouped heads": ((grouped_heads.FUSED,), grouped_heads.match),
    "written out": ((aten.bmm.default,), attention_pattern.match),
    "heads side by side": ((aten.clone.default,), attention_pattern.match_merged),
    "integer weights": ((aten.mm.default,), integer_weights_pattern.match),
    "normed product": (projection_pattern.PRODUCTS, projection_pattern.match_normed),
    "messages": (messages_pattern.SUMS, messages_pattern.match),
    "gated product": ((aten.mul.Tensor,), projection_pattern.match_gated),
}
