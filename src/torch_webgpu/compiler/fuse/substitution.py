"""Expressions over other leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.ops import ops


def rewrite(expr: Expr, leaf: Callable[[Expr], Expr], memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with what ``leaf`` makes of its leaves. ``memo``: what has become of expressions so far."""
    for e in walk([expr]):
        if e in memo:
            continue
        if any(isinstance(a, Expr) for a in e.args):
            memo[e] = Expr(e.op, tuple([memo[a] if isinstance(a, Expr) else a for a in e.args]), e.dtype)
        else:
            memo[e] = leaf(e)
    return memo[expr]


def substitute(expr: Expr, loads: dict[int, Expr], first_param: int, memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its loads replaced and its scalar arguments renumbered from ``first_param`` on."""

    def leaf(e: Expr) -> Expr:
        if e.op == "load":
            return loads[e.args[0]]
        return ops.param(e.args[0] + first_param, e.dtype) if e.op == "param" else e

    return rewrite(expr, leaf, memo)


def renumber(
    expr: Expr, loads: Sequence[int] | dict[int, int], memo: dict[Expr, Expr], params: dict[int, int] | None = None
) -> Expr:
    """``expr`` with its loads renumbered, and its scalar arguments if ``params`` says how."""

    def leaf(e: Expr) -> Expr:
        if e.op == "load":
            return ops.load(loads[e.args[0]], e.dtype)
        return ops.param(params[e.args[0]], e.dtype) if e.op == "param" and params is not None else e

    return rewrite(expr, leaf, memo)
