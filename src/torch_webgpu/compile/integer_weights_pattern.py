"""Products with integers that a program converts first, as torchao's weights of 8 bits: they are converted as they are
loaded. What scales the result is its epilogue.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_webgpu.aten.quantized.weight_only import integer_product

from .matching import FLOATS, Replacement, aten, calls, is_plain, value_of

TRANSPOSES = (aten.t.default, aten.permute.default, aten.transpose.int)


def multiplied(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``x`` (m, k) times int8 ``matrix`` (k, n)."""
    return integer_product(x, matrix.t())


def multiplied_transposed(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``x`` (m, k) times the transpose of int8 ``matrix`` (n, k)."""
    return integer_product(x, matrix)


def match(node: Any) -> Replacement | None:
    """For a product ``mm(x, w)``: w is a conversion, or the transpose of one."""
    x, w = node.args
    if not is_plain(value_of(x)) or not is_plain(value_of(w)):
        return None
    if (integers := converted(w)) is not None:
        return multiplied, (x, integers)
    if calls(w, *TRANSPOSES) and value_of(w.args[0]).dim() == 2 and (integers := converted(w.args[0])) is not None:
        return multiplied_transposed, (x, integers)
    return None


def converted(node: Any) -> Node | None:
    """The int8 tensor that a node makes floating, and does nothing else with."""
    if not isinstance(node, Node) or node.target is not aten._to_copy.default:
        return None
    if node.kwargs.keys() - {"dtype", "layout", "device"} or node.kwargs.get("dtype") not in FLOATS:
        return None
    source: Any = node.args[0]
    value = value_of(source)
    is_there = isinstance(value, torch.Tensor) and value.device == value_of(node).device
    return source if is_there and value.dtype == torch.int8 and value.dim() == 2 else None
