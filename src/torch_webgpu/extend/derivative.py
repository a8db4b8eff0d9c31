"""Derivatives of expressions: adjoints by the rules of the op table's rows, in reverse.

Reverse accumulation shares what the derivative has in common with the function, and with itself: expressions are
hash-consed, so that ``exp(-x)`` in both is one expression. Where PyTorch chose a value at a point without a derivative,
it is that one: 0 for ``abs`` at 0, a half to either operand where ``max`` has a tie, and all of it at the bound of a
``clamp``, as for ``max(x, 0.0)``, whose second operand is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.ops import ops

from .algebra import add, div, is_number, mul, neg, sub, where

Rule = Callable[..., Sequence[Expr | None]]
"""``rule(gradient, result, *operands)``: what flows to each operand; None for nothing."""


class NoDerivativeError(NotImplementedError):
    """A function whose derivative is not known here."""


def like(x: Expr, value: float) -> Expr:
    return ops.like(x, value)


def number_like(x: Expr) -> bool:
    """Whether it is the same at every point."""
    return not any(e.op in ("load", "index", "linear", "acc", "reduced") for e in walk([x]))


def power(g: Expr, r: Expr, x: Expr, y: Expr) -> Sequence[Expr | None]:
    by_x = mul(g, mul(y, ops.pow(x, sub(y, like(y, 1)))))
    if y.op == "const":
        return (None if is_number(y, 0) else by_x), None
    zero = like(x, 0)
    by_x = where(ops.eq(y, zero), zero, by_x)
    flat = ops.logical_and(ops.eq(x, zero), ops.ge(y, zero))
    return by_x, where(flat, zero, mul(g, mul(r, ops.log(x))))


def extreme(beats: str) -> Rule:
    """Of a maximum or minimum: ``beats`` says whether the first operand is the result."""

    def rule(g: Expr, r: Expr, x: Expr, y: Expr) -> Sequence[Expr | None]:
        zero = like(g, 0)
        if number_like(y):
            return where(getattr(ops, beats.replace("t", "e"))(x, y), g, zero), None
        if number_like(x):
            return None, where(getattr(ops, beats.replace("t", "e"))(y, x), g, zero)
        half = mul(like(g, 0.5), g)
        tie = ops.eq(x, y)
        first = getattr(ops, beats)
        return where(first(x, y), g, where(tie, half, zero)), where(first(y, x), g, where(tie, half, zero))

    return rule


def scale_of(value: float) -> Callable[[Expr], Expr]:
    return lambda x: like(x, value)


def one_minus(x: Expr) -> Expr:
    return sub(like(x, 1), x)


def hypot(g: Expr, r: Expr, x: Expr, y: Expr) -> Sequence[Expr | None]:
    return mul(g, div(x, r)), mul(g, div(y, r))


def atan2(g: Expr, r: Expr, y: Expr, x: Expr) -> Sequence[Expr | None]:
    share = div(g, add(mul(x, x), mul(y, y)))
    return mul(share, x), neg(mul(share, y))


def copysign(g: Expr, r: Expr, x: Expr, y: Expr) -> Sequence[Expr | None]:
    return mul(g, where(ops.eq(x, like(x, 0)), like(x, 0), ops.sign(mul(x, r)))), None


def quotient(g: Expr, r: Expr, x: Expr, y: Expr) -> Sequence[Expr | None]:
    if x.op == "const" and not is_number(x, 0):  # by the result alone
        return None, neg(div(mul(g, mul(r, r)), x))
    share = div(g, y)
    return share, neg(mul(share, r))


def fma(g: Expr, r: Expr, x: Expr, y: Expr, z: Expr) -> Sequence[Expr | None]:
    return mul(g, y), mul(g, x), g


def slope(of: Callable[[Expr, Expr], Expr]) -> Rule:
    """The rule of a function of one operand: the gradient times ``of(result, operand)``."""
    return lambda g, r, x: (mul(g, of(r, x)),)


def over(of: Callable[[Expr, Expr], Expr]) -> Rule:
    """The rule of a function of one operand: the gradient divided by ``of(result, operand)``."""
    return lambda g, r, x: (div(g, of(r, x)),)


def bell(x: Expr) -> Expr:
    return ops.exp(neg(mul(x, x)))


SQRT_PI = math.sqrt(math.pi)
RULES: dict[str, Rule] = {
    "add": lambda g, r, x, y: (g, g),
    "sub": lambda g, r, x, y: (g, neg(g)),
    "mul": lambda g, r, x, y: (mul(g, y), mul(g, x)),
    "truediv": quotient,
    "neg": lambda g, r, x: (neg(g),),
    "abs": slope(lambda r, x: ops.sign(x)),
    "reciprocal": lambda g, r, x: (neg(mul(g, mul(r, r))),),
    "fmod": lambda g, r, x, y: (g, neg(mul(g, ops.trunc(div(x, y))))),
    "remainder": lambda g, r, x, y: (g, neg(mul(g, ops.floor(div(x, y))))),
    "pow": power,
    "fma": fma,
    "where": lambda g, r, c, x, y: (None, where(c, g, like(g, 0)), where(c, like(g, 0), g)),
    "maximum": extreme("gt"),
    "minimum": extreme("lt"),
    "sqrt": over(lambda r, x: mul(like(r, 2), r)),
    "rsqrt": slope(lambda r, x: mul(like(r, -0.5), mul(r, mul(r, r)))),
    "exp": slope(lambda r, x: r),
    "exp2": slope(lambda r, x: mul(like(r, math.log(2)), r)),
    "expm1": slope(lambda r, x: add(r, like(r, 1))),
    "log": over(lambda r, x: x),
    "log2": over(lambda r, x: mul(like(x, math.log(2)), x)),
    "log10": over(lambda r, x: mul(like(x, math.log(10)), x)),
    "log1p": over(lambda r, x: add(x, like(x, 1))),
    "sin": slope(lambda r, x: ops.cos(x)),
    "cos": slope(lambda r, x: neg(ops.sin(x))),
    "tan": slope(lambda r, x: add(mul(r, r), like(r, 1))),
    "asin": slope(lambda r, x: ops.rsqrt(one_minus(mul(x, x)))),
    "acos": slope(lambda r, x: neg(ops.rsqrt(one_minus(mul(x, x))))),
    "atan": over(lambda r, x: add(mul(x, x), like(x, 1))),
    "sinh": slope(lambda r, x: ops.cosh(x)),
    "cosh": slope(lambda r, x: ops.sinh(x)),
    "tanh": slope(lambda r, x: one_minus(mul(r, r))),
    "asinh": slope(lambda r, x: ops.rsqrt(add(mul(x, x), like(x, 1)))),
    "acosh": slope(lambda r, x: ops.rsqrt(sub(mul(x, x), like(x, 1)))),
    "atanh": over(lambda r, x: one_minus(mul(x, x))),
    "sigmoid": slope(lambda r, x: mul(r, one_minus(r))),
    "erf": slope(lambda r, x: mul(like(x, 2 / SQRT_PI), bell(x))),
    "erfc": slope(lambda r, x: mul(like(x, -2 / SQRT_PI), bell(x))),
    "erfinv": slope(lambda r, x: mul(like(x, SQRT_PI / 2), ops.exp(mul(r, r)))),
    "lgamma": slope(lambda r, x: ops.digamma(x)),
    "hypot": hypot,
    "atan2": atan2,
    "copysign": copysign,
    "ldexp": lambda g, r, x, e: (mul(g, ops.exp2(e)), None),
}
FLAT = frozenset(
    "floor ceil trunc round sign eq ne lt le gt ge isnan isinf signbit logical_not logical_and logical_or logical_xor "
    "bitwise_not bitwise_and bitwise_or bitwise_xor".split()
)
"""Rows whose results do not change with their operands, but for steps."""
LEAVES = frozenset("load param const index linear acc reduced".split())


def gradients(roots: Sequence[Expr], seeds: Sequence[Expr], variables: Sequence[Expr]) -> list[Expr | None]:
    """For each of ``variables`` the sum, over ``roots``, of its derivative times the root's ``seed``.

    None where no root depends on it. ``variables`` may be any expressions below the roots, which are then taken for
    leaves. NoDerivativeError for a function that has no rule.
    """
    wanted = set(variables)
    depend: dict[Expr, bool] = {}
    for e in walk(roots):
        below = any(depend[a] for a in e.args if isinstance(a, Expr))
        depend[e] = e in wanted or (below and e.op not in FLAT and BY_NAME[e.dtype].is_float)
    flows: dict[Expr, Expr] = {}

    def flow(e: Expr, gradient: Expr) -> None:
        gradient = ops.to_dtype(gradient, e.dtype)
        flows[e] = add(flows[e], gradient) if e in flows else gradient

    for root, seed in zip(roots, seeds, strict=True):
        if depend[root]:
            flow(root, seed)
    for e in reversed(list(walk(roots))):
        if e not in flows or e in wanted:
            continue
        if e.op == "to_dtype":
            if depend[e.args[0]]:
                flow(e.args[0], flows[e])
            continue
        rule = RULES.get(e.op)
        if rule is None:
            raise NoDerivativeError(f"{e.op} has no derivative here")
        for operand, gradient in zip(e.args, rule(flows[e], e, *e.args), strict=True):
            if gradient is not None and depend[operand]:
                flow(operand, gradient)
    return [flows.get(v) for v in variables]
