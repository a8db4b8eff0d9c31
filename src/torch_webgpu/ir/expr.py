"""Expressions over table ops: values in a per-element computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary


@dataclass(frozen=True)
class WgslFunction:
    """A program's own WGSL function of ``f32`` numbers: its name, and the text that declares it and what it needs."""

    name: str
    text: str


class Expr:
    """An immutable, hash-consed expression: equal expressions are the same object, so ``is`` compares structure.

    ``op`` is a row of the op table or one of the leaves:

    * ``load k``: the element of tensor argument ``k`` at this point of the iteration space
    * ``param k``: scalar argument ``k`` (its value travels with the node, not with the code)
    * ``const v``: a literal (kept as text, so that ``1``, ``1.0`` and ``True`` stay apart)
    * ``index d``: this point's coordinate along dimension ``d``, as i32
    * ``linear``: this point's row-major number, as u32
    * ``acc k``: the ``k``-th accumulator of a reduction, or finished element of a product, in its epilogue
    * ``reduced``: in a reduction, this point's row-major number within the reduced dimensions, as u32

    or ``call``: a :class:`WgslFunction`, the first of ``args``, of the others.
    """

    __slots__ = ("__weakref__", "args", "dtype", "op")
    rows: ClassVar[Any]
    """Makes expressions of the op table's rows: ``ir.ops.ops``, which sets itself."""
    _interned: ClassVar[WeakValueDictionary[tuple[Any, ...], Expr]] = WeakValueDictionary()

    op: str
    args: tuple[Any, ...]
    dtype: str

    def __new__(cls, op: str, args: tuple[Any, ...], dtype: str) -> Expr:
        key = (op, args, dtype)
        expr = cls._interned.get(key)
        if expr is None:
            expr = super().__new__(cls)
            expr.op, expr.args, expr.dtype = key
            cls._interned[key] = expr
        return expr

    def __repr__(self) -> str:
        return f"{self.op}:{self.dtype}({', '.join(map(repr, self.args))})"

    def __reduce__(self) -> tuple[type[Expr], tuple[Any, ...]]:
        return Expr, (self.op, self.args, self.dtype)

    # Arithmetic and order build rows of the op table; numbers become constants of the other operand's dtype. Equality
    # stays identity: ``ops.eq`` builds the comparison.

    def __add__(self, other: Operand) -> Expr:
        return _apply("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _apply("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return _apply("truediv", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _apply("truediv", other, self)

    def __neg__(self) -> Expr:
        return _apply("neg", self)

    def __abs__(self) -> Expr:
        return _apply("abs", self)

    def __lt__(self, other: Operand) -> Expr:
        return _apply("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return _apply("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return _apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return _apply("ge", self, other)

    def __and__(self, other: Operand) -> Expr:
        return _apply("bitwise_and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return _apply("bitwise_or", self, other)

    def __invert__(self) -> Expr:
        return _apply("bitwise_not", self)


Operand = Expr | float | int | bool | complex


def _apply(row: str, *operands: Operand) -> Expr:
    return getattr(Expr.rows, row)(*operands)


def walk(roots: Sequence[Expr]) -> Iterator[Expr]:
    """Every expression below ``roots``, each once, operands before users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if expr in seen:
            continue
        if ready:
            seen.add(expr)
            yield expr
            continue
        stack.append((expr, True))
        stack.extend((arg, False) for arg in expr.args if isinstance(arg, Expr))


def functions_of(roots: Sequence[Expr]) -> list[WgslFunction]:
    """The programs' own functions that are called below ``roots``, each once."""
    return list(dict.fromkeys([e.args[0] for e in walk(roots) if e.op == "call"]))
