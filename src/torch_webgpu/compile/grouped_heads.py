"""Heads of keys and values that a graph copies for the queries that share them; the attention kernel needs no copies.

``k[:, :, None].expand(B, G, n, S, E).reshape(B, G * n, S, E)`` is how language models write it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from .matching import Replacement, aten, calls

FUSED = aten._scaled_dot_product_fused_attention_overrideable.default
RESHAPES = (aten._unsafe_view.default, aten.view.default)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, *rest: Any
) -> tuple[Any, ...]:
    """PyTorch's operator; key and value may have fewer heads than query. ``rest``: its other arguments in order."""
    return FUSED(query, key, value, *rest, scale=scale)


def match(node: Node) -> Replacement | None:
    """For attention over copied heads: the same over the heads themselves."""
    query, key, value, *rest = node.args
    sources = repeated(key), repeated(value)
    if None in sources or node.kwargs.keys() - {"scale"}:
        return None
    (k, v), heads = sources, [s.meta["val"].shape[1] for s in sources if s is not None]
    if heads[0] != heads[1]:
        return None
    return attention, (query, k, v, node.kwargs.get("scale"), *rest)


def repeated(node: Any) -> Node | None:
    """The (B, G, S, E) whose heads a node's value (B, G * n, S, E) has n times each, one after the other."""
    if not calls(node, *RESHAPES):
        return None
    copy = node.args[0]
    is_copied = isinstance(copy, Node) and copy.target is aten.clone.default
    spread = copy.args[0] if is_copied else copy
    if not calls(spread, aten.expand.default) or not calls(spread.args[0], aten.unsqueeze.default):
        return None
    source, dim = spread.args[0].args
    shape, spread_shape = tuple(node.meta["val"].shape), tuple(spread.meta["val"].shape)
    before = tuple(source.meta["val"].shape)
    if dim not in (2, -3) or len(before) != 4 or len(spread_shape) != 5:
        return None
    b, g, s, e = before
    return source if spread_shape == (b, g, spread_shape[2], s, e) and shape == (b, g * spread_shape[2], s, e) else None
