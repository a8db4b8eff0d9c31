"""Expressions over other operands."""

from __future__ import annotations

from collections.abc import Sequence

from torch_webgpu.ir.graph import Expr, walk
from torch_webgpu.ir.ops import ops


def substitute(expr: Expr, loads: dict[int, Expr], first_param: int, memo: dict[Expr, Expr]) -> Expr:
    """``expr`` with its loads replaced and its scalar arguments renumbered from ``first_param`` on."""
    for e in walk([expr]):
        if e in memo:
            continue
        if e.op == "load":
            memo[e] = loads[e.args[0]]
        elif e.op == "param":
            memo[e] = ops.param(e.args[0] + first_param, e.dtype)
        else:
            memo[e] = rebuilt(e, memo)
    return memo[expr]


def renumber(
    expr: Expr, loads: Sequence[int] | dict[int, int], memo: dict[Expr, Expr], params: dict[int, int] | None = None
) -> Expr:
    """``expr`` with its loads renumbered, and its scalar arguments if ``params`` says how."""
    for e in walk([expr]):
        if e in memo:
            continue
        if e.op == "load":
            memo[e] = ops.load(loads[e.args[0]], e.dtype)
        elif e.op == "param" and params is not None:
            memo[e] = ops.param(params[e.args[0]], e.dtype)
        else:
            memo[e] = rebuilt(e, memo)
    return memo[expr]


def rebuilt(e: Expr, memo: dict[Expr, Expr]) -> Expr:
    """``e`` over what its operands have become."""
    if not any(isinstance(a, Expr) for a in e.args):
        return e
    return Expr(e.op, tuple([memo[a] if isinstance(a, Expr) else a for a in e.args]), e.dtype)
