"""What is computed of a padded product is computed for its further columns, too: of a loss over words, the gradient of
the scores.

Lines that end where the program's do take a kernel of one element a thread, and are copied to be padded for the next
product. Whole lines need neither, if what the further columns hold is known: it counts for nothing in a loss, and is
zero in an operand.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from .cross_entropy import LOG_SUM_EXP, LOSS_SLOPE
from .matching import aten, calls, new_call, unviewed, uses, value_of


class Wide(NamedTuple):
    """A tensor with further columns, and the number that these hold; None where they hold various ones. Rows whose own
    numbers are infinite or NaN may hold NaN there.
    """

    node: Any
    number: float | None


ROW = float("nan")
"""This very object: a number that is not known, is finite, and the same for all columns."""


def sum_of(a: float, b: float) -> float | None:
    """``a + b``; of an infinity and what is finite the former."""
    return next((x for x in (a, b) if abs(x) == inf), None) if ROW in (a, b) else a + b


def product_of(a: float, b: float) -> float | None:
    if ROW in (a, b):
        return 0.0 if 0 in (a, b) else None
    return a * b


ELEMENTWISE: dict[Any, Callable[..., float | None]] = {
    aten.add.Tensor: sum_of,
    aten.sub.Tensor: lambda a, b: sum_of(a, b if b is ROW else -b),
    aten.mul.Tensor: product_of,
    aten.neg.default: lambda a: -a,
    aten.exp.default: lambda a: exp(a) if a < 80 else None,
    aten._to_copy.default: lambda a: a,
    LOSS_SLOPE: lambda a: 0.0,
}
"""Operators that can be computed for further columns, and what is there of the numbers that their operands hold there.
A loss has no targets there.
"""


def with_zeros(node: Node, columns: int, before: Node) -> Node | None:
    """A matrix with zeros up to ``columns``, computed before a node; None where it is not computed element by element
    of a padded product.
    """
    own, wide = value_of(node), widened(node, columns, before, {})
    if wide is None or value_of(wide.node).shape != (own.shape[0], columns):
        return None
    return wide.node if wide.number == 0 else filled(wide.node, own.shape[1], 0.0, before)


def widened(node: Any, columns: int, before: Node, known: dict[Node, Wide | None]) -> Wide | None:
    """An operand with ``columns`` columns, or what is the same for all of them. ``known``: what was asked before."""
    if not isinstance(node, Node):
        return Wide(node, float(node))
    if node not in known:
        known[node] = _widened(node, columns, before, known)
    return known[node]


def _widened(node: Node, columns: int, before: Node, known: dict[Node, Wide | None]) -> Wide | None:
    value, source = value_of(node), unviewed(node)
    if not isinstance(value, torch.Tensor):  # a size that is a symbol
        return Wide(node, ROW)
    if not value.dim() or value.shape[-1] == 1:
        return Wide(node, ROW) if value.dim() <= 2 else None
    if value_of(source).shape[-1] != value.shape[-1]:
        return None
    if source.target is aten.slice.Tensor:
        return whole_product(source, columns)
    rule = ELEMENTWISE.get(source.target)
    if rule is None or (source.target in (aten.add.Tensor, aten.sub.Tensor) and source.kwargs):
        return None
    args, numbers = list(source.args), []
    for k in (1,) if source.target is LOSS_SLOPE else range(len(args)):  # whose other arguments are of rows
        operand = widened(args[k], columns, before, known) if has_rows_of(args[k], source) else None
        if operand is None:
            return None
        args[k] = operand.node
        numbers.append(operand.number)
    number = None if None in numbers else rule(*numbers)
    return Wide(new_call(before, source.target, *args, **source.kwargs), number)


def has_rows_of(operand: Any, node: Node) -> bool:
    """Whether an operand is a number, or has the rows that a node has: others would be broadcast along these, which are
    one dimension in a matrix.
    """
    value = value_of(operand)
    if not isinstance(value, torch.Tensor):
        return True
    is_one = all(isinstance(n, int) and n == 1 for n in value.shape)
    return is_one or value.shape[:-1] == value_of(node).shape[:-1]


def whole_product(node: Node, columns: int) -> Wide | None:
    """The padded product, of so many columns, whose first ones a node is."""
    if not calls(node, aten.slice.Tensor) or node.args[1:3] != (1, 0):
        return None
    product: Any = node.args[0]
    source, number = product, 0.0  # of operands that are padded with zeros
    if calls(product, aten.where.ScalarOther):
        source, number = product.args[1:]
    if not calls(source, aten.mm.default) or value_of(product).shape[1] != columns:
        return None
    return Wide(product, number)


def sum_whole_lines(part: Node) -> None:
    """Has losses sum whole lines of the padded product of which a node is a part: its further columns become -inf."""
    columns = value_of(part).shape[1]
    sums = [user for user in uses(part) if user.target is LOG_SUM_EXP and value_of(user.args[0]).shape[1] == columns]
    product = part.args[0]
    wide = whole_product(part, value_of(product).shape[1]) if sums and part.target is aten.slice.Tensor else None
    if wide is None:
        return
    whole = filled(wide.node, columns, -inf, part)
    part.replace_input_with(wide.node, whole)
    for node in sums:
        node.args = (whole,)


def filled(wide: Node, columns: int, number: float, before: Node) -> Node:
    """A matrix with a number from column ``columns`` on. Which columns these are is computed before the matrix, so that
    fusion finds the matrix and this side by side.
    """
    value = value_of(wide)
    places = new_call(wide, aten.arange.default, value.shape[1], device=value.device)
    return new_call(before, aten.where.ScalarOther, new_call(wide, aten.lt.Scalar, places, columns), wide, number)
