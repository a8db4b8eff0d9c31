"""FlexAttention as kernels that keep no scores: they call what the program does to these, and leave out blocks that a
mask hides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.fx import GraphModule, Node

from torch_webgpu.aten.attention.flex_kernels import (
    flex_attention_in_tiles,
    flex_attention_in_tiles_backward,
    mask_of_blocks,
    written,
)
from torch_webgpu.engine.record import engine
from torch_webgpu.kernels.attention import flash
from torch_webgpu.kernels.attention.score_function import BLOCKS, ScoreFunction

from .flex_scores import UnknownError, score_function
from .in_place import any_symbols
from .matching import FLOATS
from .private import fake_mode_of, same

WHOLE = 1 << 30
"""Queries of a block, in a mask of blocks that a program did not give."""
GREATEST = 2
"""The number of the result that is the greatest score of each query."""
LISTS, BLOCK_SIZES = slice(2, 6), slice(-3, -1)
"""Parts of a BlockMask: the lists of which keys a block of queries sees, and which all of its queries see; and how many
queries and keys a block is.
"""


def has_blocks(given: Mapping[str, Any]) -> bool:
    """Whether a program gave a mask of blocks."""
    return given["block_mask"][BLOCK_SIZES][0] < WHOLE


def asks_for_greatest(node: Node) -> bool:
    """Whether the greatest scores are wanted, which no kernel gives."""
    return node.target is flex_attention and any(user.args[1:] == (GREATEST,) for user in node.users)


def needed_parts(block_mask: Sequence[Any]) -> tuple[Any, ...]:
    """A mask of blocks with None for the lists that nobody reads: where a program gave none, all, and else those of the
    queries that keys are seen by. The sizes of its blocks become numbers, for which the graph is guarded.
    """
    parts = list(block_mask)
    parts[BLOCK_SIZES] = [int(n.meta["val"]) if isinstance(n, Node) else n for n in parts[BLOCK_SIZES]]
    kept = range(*LISTS.indices(len(parts))) if parts[BLOCK_SIZES][0] < WHOLE else ()
    for k, part in enumerate(parts):
        if isinstance(part, Node) and isinstance(part.meta.get("val"), torch.Tensor) and k not in kept:
            parts[k] = None
    return tuple(parts)


def results_of(node: Node, given: Mapping[str, Any], functions: Mapping[Node, GraphModule]) -> tuple[Any, ...] | None:
    """What takes the place of a node's results: those of a new node; None where it has to be written out."""
    query, key, value = heads = [given[name].meta["val"] for name in ("query", "key", "value")]
    is_backward = node.target is flex_attention_backward
    if not are_heads(*heads) or (is_backward and given["grad_out"] is None) or asks_for_greatest(node):
        return None
    lists, block, mask = given["block_mask"][LISTS], given["block_mask"][BLOCK_SIZES], given["block_mask"][-1]
    read = given["score_mod_other_buffers"], given["mask_mod_other_buffers"]
    scores, joint = given["fw_graph" if is_backward else "score_mod"], given.get("joint_graph")
    try:
        with fake_mode_of(heads), torch.no_grad():
            function, tensors, numbers = score_function(
                functions[scores],
                functions[mask],
                functions[joint] if joint is not None else None,
                *read,
                query.device,
                tuple(block) if has_blocks(given) else None,
            )
    except UnknownError:
        return None
    if not fit(query, key, value, function, tensors, is_backward):
        return None
    if has_blocks(given):
        lines = (False, True) if is_backward else (False,)
        tensors = [*tensors, *(blocks_before(node, lists, given["key"], block[1], of_keys) for of_keys in lines)]
    last = (tuple(tensors), written(function), tuple(numbers), given["scale"])
    operands = [given[name] for name in ("query", "key", "value")]
    if is_backward:
        sums = [given[name] for name in ("out", "logsumexp", "grad_logsumexp")]
        value = node.meta["val"][:3]  # without the gradients of what functions read
        call = call_before(node, flex_attention_in_tiles_backward, value, given["grad_out"], *operands, *sums, *last)
        return *[result(call, k, node) for k in range(3)], (None,) * len(given["score_mod_other_buffers"])
    call = call_before(node, flex_attention_in_tiles, node.meta["val"], *operands, *last)
    return result(call, 0, node), result(call, 1, node), None


def are_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether kernels know these layouts; lengths and the number of batches may be symbols, for which the graph is
    guarded.
    """
    if query.dtype not in FLOATS or not query.dtype == key.dtype == value.dtype:
        return False
    fixed = (*query.shape[1::2], *key.shape[1::2], *value.shape[1::2], query.stride(3))
    if not all(isinstance(size, int) for size in fixed) or query.stride(3) != 1:
        return False
    known = [size for t in (query, key, value) for size in t.shape if isinstance(size, int)]
    heads, groups = query.shape[1], key.shape[1]
    if not all(known) or heads % groups or value.shape[1] != groups or query.shape[3] != key.shape[3]:
        return False
    return bool(key.shape[0] == query.shape[0] == value.shape[0] and key.shape[2] == value.shape[2])


def fit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    function: ScoreFunction,
    tensors: Sequence[Node],
    is_backward: bool,
) -> bool:
    """Whether the adapter computes this: sizes, as far as they are known, and how many buffers a kernel binds."""
    target = engine().device(query.device.index or 0).target
    sizes = [size if isinstance(size, int) else 1 for size in query.shape]
    keys = key.shape[2] if isinstance(key.shape[2], int) else 1
    if not flash.fits(sizes, keys, value.shape[3], target):
        return False
    large = [query, key, value, *(node.meta["val"] for node in tensors)]
    large += [query, key, value] if is_backward else [query]  # the gradients, or the result
    windows = [1 if any_symbols(t) else -(-t.numel() * t.itemsize // target.window_bytes) for t in large]
    scales = bool(target.matrices) and query.dtype == torch.bfloat16
    small = (3 if is_backward else 1) + (function.block is not None) + scales
    return small + sum(windows) <= target.max_buffers


def blocks_before(node: Node, lists: Sequence[Any], key: Node, block: int, is_transposed: bool) -> Node:
    """The mask of blocks that ``lists`` say of a node's keys: one for all of a graph that are asked about the same."""
    length = key.meta["val"].shape[2]
    for other in node.graph.find_nodes(op="call_function", target=mask_of_blocks):
        *of_lists, of_key, of_block, of_direction = other.args
        is_same = other < node and (of_lists, of_block, of_direction) == (list(lists), block, is_transposed)
        if is_same and same(of_key.meta["val"].shape[2], length):
            return other
    arguments = *lists, key, block, is_transposed
    counts = lists[0].meta["val"]
    with fake_mode_of([counts]):
        rows, columns = counts.shape[2], -(-length // block)
        lines, blocks = (columns, rows) if is_transposed else (rows, columns)
        mask = counts.new_empty((*counts.shape[:2], lines, -(-blocks // BLOCKS)))
    return call_before(node, mask_of_blocks, mask, *arguments)


def call_before(node: Node, target: Any, value: Any, *args: Any) -> Node:
    """A call for a node that stands after it; ``value``: what it gives."""
    with node.graph.inserting_before(node):
        call = node.graph.call_function(target, args)
    call.meta = {**node.meta, "val": value}
    return call


def result(call: Node, k: int, node: Node) -> Node:
    """Result ``k`` of a call that stands before a node."""
    with node.graph.inserting_before(node):
        one = node.graph.call_function(getitem, (call, k))
    one.meta = {**node.meta, "val": node.meta["val"][k]}
    return one
