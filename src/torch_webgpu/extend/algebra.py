"""Expressions built with the identities of arithmetic, so that derivatives are no longer than written by hand."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torch_webgpu.aten.dispatch.expressions import number
from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops

ROWS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "abs": abs,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "maximum": max, "minimum": min, "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "sin": math.sin,
    "cos": math.cos, "tanh": math.tanh, "floor": math.floor, "ceil": math.ceil, "pow": math.pow,
    "truediv": operator.truediv, "truncdiv": lambda a, b: math.trunc(a / b),
}  # fmt: skip
"""Rows that are computed here where all operands are literals, in double precision, as WGSL does for its own."""


def folded(row: str, *operands: Expr) -> Expr:
    """A row of the op table; a constant where all operands are, unless that has no finite value."""
    values = [number(x) for x in operands]
    if row in ROWS and None not in values and BY_NAME[operands[0].dtype].kind in "fdil":
        try:
            value = ROWS[row](*values)
        except (ArithmeticError, ValueError, TypeError):
            value = math.nan
        if isinstance(value, bool):
            return ops.constant(value, "bool")
        if math.isfinite(value):
            return ops.like(operands[0], value)
    return getattr(ops, row)(*operands)


def is_number(x: Expr, value: float) -> bool:
    found = number(x)
    return found is not None and found == value


def add(a: Expr, b: Expr) -> Expr:
    if is_number(a, 0):
        return b
    if is_number(b, 0):
        return a
    if b.op == "neg":
        return sub(a, b.args[0])
    if a.op == "neg":
        return sub(b, a.args[0])
    return folded("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    if is_number(b, 0):
        return a
    if is_number(a, 0):
        return neg(b)
    if b.op == "neg":
        return add(a, b.args[0])
    return folded("sub", a, b)


def neg(a: Expr) -> Expr:
    return a.args[0] if a.op == "neg" else folded("neg", a)


def mul(a: Expr, b: Expr) -> Expr:
    """Of what is not a constant nothing is known: a product with 0 stays, as it may be NaN."""
    for x, factor in ((a, b), (b, a)):
        if is_number(factor, 1):
            return x
        if is_number(factor, -1):
            return neg(x)
    if a.op == "neg":
        return neg(mul(a.args[0], b))
    if b.op == "neg":
        return neg(mul(a, b.args[0]))
    if number(a) is None and number(b) is not None:
        a, b = b, a
    # Constants meet: 2 * (3 * x).
    if number(a) is not None and b.op == "mul" and number(b.args[0]) is not None:
        return mul(folded("mul", a, b.args[0]), b.args[1])
    return folded("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    if is_number(b, 1):
        return a
    if a.op == "neg":
        return neg(div(a.args[0], b))
    return folded("truediv", a, b)


def where(condition: Expr, chosen: Expr, other: Expr) -> Expr:
    known = number(condition)
    if known is not None:
        return chosen if known else other
    return chosen if chosen is other else ops.where(condition, chosen, other)


def substituted(roots: list[Expr], replacements: dict[Expr, Expr]) -> list[Expr]:
    """``roots`` with the expressions that are keys replaced by their values."""
    known = dict(replacements)

    def rebuilt(e: Expr) -> Expr:
        if e not in known:
            args = tuple([rebuilt(a) if isinstance(a, Expr) else a for a in e.args])
            known[e] = e if args == e.args else Expr(e.op, args, e.dtype)
        return known[e]

    return [rebuilt(root) for root in roots]
