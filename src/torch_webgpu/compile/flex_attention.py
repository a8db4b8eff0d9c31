"""FlexAttention written out: ``torch.nn.attention.flex_attention`` in a compiled graph.

It is one node that calls functions of the program's: for scores, and for which of them count. PyTorch has its meaning
in operators (``sdpa_dense``), also of its gradients. These take the node's place, so that they are part of a plan, and
fuse: what the program does to scores with the product before and the softmax after it.

Where there are kernels for what the program does they take the node's place instead, and keep no scores
(:mod:`.flex_tiles`); and where that is nothing, it is attention with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
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

from torch_webgpu.aten.attention.flex_kernels import in_powers_of_e, in_powers_of_two
from torch_webgpu.aten.attention.sdpa import are_heads

from . import flex_tiles
from .in_place import any_symbols
from .matching import ATTENTION, HALVES, NOT_COPIED, aten, called, calls
from .partition import values
from .private import fake_mode_of, functions_over_scores, indexing_by_tensors, is_webgpu, without_fakes

ARGUMENTS = {
    flex_attention: list(signature(sdpa_dense).parameters),
    flex_attention_backward: list(signature(sdpa_dense_backward).parameters),
}
MEANINGS: dict[Any, Callable[..., Any]] = {flex_attention: sdpa_dense, flex_attention_backward: sdpa_dense_backward}
MOVES = (
    aten.clone.default,
    aten.expand.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
    aten._unsafe_view.default,
)
CONSTANTS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)


def nodes_in(gm: GraphModule) -> list[Node]:
    """The nodes that compute on webgpu."""
    nodes = [node for target in MEANINGS for node in gm.graph.find_nodes(op="call_function", target=target)]
    return [node for node in nodes if any(map(is_webgpu, values(node.meta.get("val"))))]


def forget_lists(gm: GraphModule) -> None:
    """Takes from masks of blocks what nobody reads. What made it goes, too, and a backward pass keeps nothing of it."""
    nodes = nodes_in(gm)
    for node in nodes:
        given = given_to(node)
        node.update_arg(list(given).index("block_mask"), flex_tiles.needed_parts(given["block_mask"]))
    if nodes:
        gm.graph.eliminate_dead_code()


def apply(gm: GraphModule) -> dict[str, int]:
    """Writes out what computes on webgpu; how often, by name."""
    nodes = nodes_in(gm)
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
    given = given_to(node)
    meaning, kind = MEANINGS[node.target], kind_of(functions[given["block_mask"][-1]])
    scores = functions[given["score_mod" if "score_mod" in given else "fw_graph"]]
    is_plain = is_unchanged(scores) and is_attention(node, given)
    has_mask = kind is Kind.COMPUTED or (kind is Kind.NONE and flex_tiles.has_blocks(given))
    results = flex_tiles.results_of(node, given, functions) if has_mask or not is_plain else None
    if results is not None:
        replace(gm.graph, node, results)
        return
    if is_plain:
        meaning = partial(FUSED[node.target], kind=kind)

    def call(*arguments: Any) -> Any:
        known = functions | dict(zip(inputs, arguments, strict=True))
        return meaning(**map_arg(given, known.__getitem__))

    learned = with_gradients(given, functions)
    with fake_mode_of([n.meta["val"] for n in inputs]), torch.no_grad():
        examples = [n.meta["val"].detach().requires_grad_() if n in learned else n.meta["val"] for n in inputs]
        traced = make_fx(call)(*examples)
        with_numbers(traced, next(filter(is_webgpu, examples)).device)
        in_halves(traced)
    traced.graph.eliminate_dead_code()
    without_copies(traced)
    places = [n for n in traced.graph.nodes if n.op == "placeholder"]
    before = set(gm.graph.nodes)
    with gm.graph.inserting_before(node):
        copied: Any = gm.graph.graph_copy(traced.graph, dict(zip(places, inputs, strict=True)))
    place = {k: v for k, v in node.meta.items() if k not in NOT_COPIED}  # errors name the program's line
    for new in [n for n in gm.graph.nodes if n not in before]:
        new.meta = place | {k: v for k, v in new.meta.items() if k in NOT_COPIED}
    replace(gm.graph, node, copied)


def given_to(node: Node) -> dict[str, Any]:
    """A node's arguments by name."""
    args: Any = node.args
    return dict(zip(ARGUMENTS[node.target], args)) | dict(node.kwargs)  # type: ignore[index]


def is_unchanged(scores: GraphModule) -> bool:
    """Whether a function of scores returns these."""
    first, output = next(iter(scores.graph.nodes)), scores.graph.output_node()
    return output.args[0] is first


def is_attention(node: Node, given: Mapping[str, Any]) -> bool:
    """Whether there are kernels for the operands, and for what is asked for."""
    query, key, value = (given[name].meta["val"] for name in ("query", "key", "value"))
    if any_symbols(query) or any_symbols(key) or not are_heads(query, key, value, None) or not key.numel():
        return False
    if node.target is flex_attention_backward:
        return given["grad_out"] is not None and given["grad_logsumexp"] is None
    return not flex_tiles.asks_for_greatest(node)


class Kind(Enum):
    """Masks that need not be computed, and those that need."""

    NONE = auto()
    CAUSAL = auto()
    COMPUTED = auto()


def kind_of(mask: GraphModule) -> Kind:
    """What a function of batch, head, query and key says counts."""
    result: Any = mask.graph.output_node().args[0]
    _, _, query, key, *_ = mask.graph.nodes
    if isinstance(result, Node) and result.target is aten.new_ones.default:
        return Kind.NONE
    return Kind.CAUSAL if calls(result, aten.ge.Tensor) and result.args == (query, key) else Kind.COMPUTED


def mask_of(query: torch.Tensor, key: torch.Tensor, block_mask: Any, read: Sequence[Any], kind: Kind) -> Any:
    """The mask as attention takes it, a boolean for each score; None where its kind says it."""
    if kind is not Kind.COMPUTED:
        return None
    counts = functions_over_scores(block_mask[-1], len(read))
    sizes = (*query.shape[:3], key.shape[2])
    with indexing_by_tensors():
        return counts(*[torch.arange(size, device=query.device) for size in sizes], *read)


def fused(
    *, query: Any, key: Any, value: Any, block_mask: Any, scale: float, kind: Kind, **rest: Any
) -> tuple[Any, ...]:
    """``sdpa_dense`` of scores that are not changed: sums are to the base of two."""
    mask = mask_of(query, key, block_mask, rest.get("mask_mod_other_buffers", ()), kind)
    out, sums, *_ = ATTENTION[0](query, key, value, mask, 0.0, kind is Kind.CAUSAL, scale=scale)
    return out, in_powers_of_two(sums), None


def fused_backward(
    *, query: Any, key: Any, value: Any, block_mask: Any, scale: float, kind: Kind, out: Any, logsumexp: Any,
    grad_out: Any, score_mod_other_buffers: Sequence[Any], mask_mod_other_buffers: Sequence[Any], **rest: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """``sdpa_dense_backward`` of the same."""
    mask = mask_of(query, key, block_mask, mask_mod_other_buffers, kind)
    sums, wanted = in_powers_of_e(logsumexp), [True, True, True, False]
    unused = [sums] * 2  # what is random, or packed
    lengths = query.shape[2], key.shape[2]
    options = (*unused, *lengths, 0.0, kind is Kind.CAUSAL, *unused)
    *gradients, _ = ATTENTION[1](grad_out, query, key, value, mask, wanted, out, sums, *options, scale=scale)
    return (*gradients, (None,) * len(score_mod_other_buffers))


FUSED: dict[Any, Callable[..., Any]] = {flex_attention: fused, flex_attention_backward: fused_backward}


def with_gradients(given: Mapping[str, Any], functions: Mapping[Node, GraphModule]) -> set[Node]:
    """The tensors that a function of scores reads and has gradients of, in a backward pass: its meaning asks them."""
    joint = functions.get(given.get("joint_graph"))  # type: ignore[arg-type]
    if joint is None:
        return set()
    results: Any = joint.graph.output_node().args[0]
    read = given["score_mod_other_buffers"]
    return {n for n, gradient in zip(read, results[len(results) - len(read) :], strict=True) if gradient is not None}


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


def in_halves(traced: GraphModule) -> None:
    """Multiplies 16-bit numbers as they are, where a product brings both operands to float32 first: it sums in that."""
    for node in list(traced.graph.nodes):
        if not calls(node, aten.bmm.default):
            continue
        casts = [cast_of(operand) for operand in node.args]
        if None in casts or len({cast.args[0].meta["val"].dtype for cast in casts}) > 1:  # type: ignore[union-attr]
            continue
        with traced.graph.inserting_before(node):
            try:
                operands = [uncast(operand) for operand in node.args]
            except (RuntimeError, ValueError):  # they lie so that there is no such view of them
                continue
            product = traced.graph.call_function(aten.bmm.dtype, (*operands, torch.float32))
        product.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(product)
        traced.graph.erase_node(node)


def cast_of(operand: Any) -> Node | None:
    """What brings 16-bit numbers to float32, which ``operand`` moves, if that is all that it does."""
    while operand.target in MOVES:
        operand = operand.args[0]
    is_cast = operand.target is aten._to_copy.default and operand.meta["val"].dtype == torch.float32
    return operand if is_cast and operand.args[0].meta["val"].dtype in HALVES else None


def uncast(operand: Any) -> Any:
    """The same of the 16-bit numbers."""
    if operand.target not in MOVES:
        return operand.args[0]
    moved = operand.graph.call_function(operand.target, (uncast(operand.args[0]), *operand.args[1:]), operand.kwargs)
    moved.meta["val"] = called(moved)
    return moved


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
