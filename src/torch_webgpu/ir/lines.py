"""Expressions as tuples of numbers and names, for what keeps nothing else, such as the arguments of a graph's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .expr import Expr, walk

Lines = tuple[tuple[Any, ...], ...]
"""One for each expression, operands before users: op, dtype, arguments. Of these an expression is (its number,)."""


def lines_of(roots: Sequence[Expr]) -> tuple[Lines, tuple[int, ...]]:
    """Every expression below ``roots``, and the numbers of these."""
    numbers: dict[Expr, int] = {}
    lines = []
    for e in walk(roots):
        numbers[e] = len(numbers)
        lines.append((e.op, e.dtype, *((numbers[a],) if isinstance(a, Expr) else a for a in e.args)))
    return tuple(lines), tuple([numbers[root] for root in roots])


def expressions_of(lines: Lines) -> list[Expr]:
    """What these lines are, one by one."""
    expressions: list[Expr] = []
    for op, dtype, *args in lines:
        operands = tuple([expressions[a[0]] if isinstance(a, tuple) else a for a in args])
        expressions.append(Expr(op, operands, dtype))
    return expressions
