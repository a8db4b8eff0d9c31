"""WGSL expressions as expressions over the op table: what each function is, and PyTorch's type promotion.

An element keeps its tensor's dtype until it meets another one; then both become what PyTorch promotes them to. The half
types are computed in float32 and rounded once, where the result is stored. Literals and numbers among the arguments
have no dtype of their own, as WGSL's literals and Python's numbers have none: they take that of the elements they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_webgpu import dtypes
from torch_webgpu.errors import did_you_mean
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import TABLE, MissingKindError, ops

from .algebra import folded, where
from .syntax import BINARY, UNARY, Call, ExpressionError, Let, Literal, Name, Tree

TENSOR, ZERO_DIM = 0, 1
"""Of elements: what decides first in type promotion. Numbers come last."""


@dataclass(frozen=True)
class Element:
    """A value at a point: ``dtype`` is what PyTorch calls it, ``expr`` computes it (half types in f32)."""

    expr: Expr
    dtype: str
    rank: int = TENSOR


@dataclass(frozen=True)
class Number:
    """A value without a dtype: ``category`` is "b", "i" or "f", ``make(dtype)`` computes it in a dtype."""

    category: str
    make: Callable[[str], Expr]


Value = Element | Number
CATEGORIES = {bool: "b", int: "i", float: "f"}


def literal(value: float | int | bool) -> Number:
    return Number(CATEGORIES[type(value)], lambda dtype: ops.constant(value, dtype))


def torch_dtype(name: str) -> torch.dtype:
    return dtypes.BY_NAME[name].torch


def dtype_of_number(category: str) -> torch.dtype:
    return {"b": torch.bool, "i": torch.int64}.get(category) or torch.get_default_dtype()


def promoted(values: Sequence[Value]) -> str:
    """The dtype of an operation on these: https://docs.pytorch.org/docs/stable/tensor_attributes.html."""
    result: torch.dtype | None = None
    ranked: list[list[torch.dtype]] = [[], [], []]
    for value in values:
        if isinstance(value, Number):
            ranked[2].append(dtype_of_number(value.category))
        else:
            ranked[value.rank].append(torch_dtype(value.dtype))
    for same_rank in reversed(ranked):
        if same_rank:
            dtype = same_rank[0]
            for other in same_rank[1:]:
                dtype = torch.promote_types(dtype, other)
            result = dtype if result is None else combined(dtype, result)
    assert result is not None
    return dtypes.of(result).name


def combined(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """The dtype of operands of two ranks: the higher rank's, unless the lower's is of a higher category."""
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


class Lowering:
    """The meaning of trees for arguments of certain dtypes.

    ``single``: float64 is written as f32, for whoever runs expressions without the op table, which lacks some of its
    functions.
    """

    def __init__(self, arguments: Mapping[str, Value], single: bool = False) -> None:
        self.single = single
        self.double = any(isinstance(v, Element) and v.dtype == "f64" for v in arguments.values())
        self.arguments = dict(arguments)

    def computed(self, dtype: str) -> str:
        """The dtype that elements of ``dtype`` are computed in."""
        if dtype in ("f16", "bf16") or (dtype == "f64" and self.single):
            return "f32"
        return dtype

    def element(self, value: Value, dtype: str) -> Expr:
        """``value`` brought to what ``dtype`` is computed in."""
        target = self.computed(dtype)
        return value.make(target) if isinstance(value, Number) else ops.to_dtype(value.expr, target)

    def lower(self, tree: Tree) -> Value:
        if isinstance(tree, Literal):
            return literal(tree.value)
        if isinstance(tree, Name):
            return self.arguments[tree.name]
        if isinstance(tree, Let):
            self.arguments[tree.name] = self.lower(tree.value)
            return self.lower(tree.rest)
        values = [self.lower(operand) for operand in tree.operands]
        function = function_of(tree)
        if not function.least <= len(values) <= function.most:
            counts = {function.least, function.most}
            takes = " or ".join(map(str, sorted(counts)))
            raise tree.place.error(f"{tree.function} takes {takes} operand{'s' * (counts != {1})}, not {len(values)}")
        try:
            return function.apply(Operands(self, tree, values))
        except MissingKindError as reason:
            if self.single:
                raise tree.place.error(str(reason)) from None
            raise  # the device lacks it, and PyTorch has it

    def result(self, tree: Tree) -> Element:
        """What is stored at a point."""
        value = self.lower(tree)
        if isinstance(value, Element):
            return value
        dtype = dtypes.of(dtype_of_number(value.category)).name
        return Element(self.element(value, dtype), dtype)


class Operands:
    """The operands of one call, and how its result is made of them."""

    def __init__(self, lowering: Lowering, call: Call, values: Sequence[Value]) -> None:
        self.lowering, self.call, self.values = lowering, call, values

    def __getitem__(self, k: int) -> Value:
        return self.values[k]

    def error(self, problem: str, operand: int | None = None) -> ExpressionError:
        place = self.call.place if operand is None else self.call.operands[operand].place
        return place.error(problem)

    def category(self, k: int) -> str:
        """ "b", "i" or "f"."""
        value = self.values[k]
        if isinstance(value, Number):
            return value.category
        kind = dtypes.BY_NAME[value.dtype].kind
        return {"b": "b", "f": "f", "d": "f"}.get(kind, "i")

    def name(self) -> str:
        call = self.call
        return next(s for s, n in (BINARY | UNARY).items() if n == call.function) if call.is_operator else call.function

    def numeric(self) -> None:
        """Raises unless no operand is a truth value, of which WGSL computes nothing."""
        for k in range(len(self.values)):
            if self.category(k) == "b":
                raise self.error(f"{self.name()} of a bool: write f32(…) or select(0.0, 1.0, …) for its number", k)

    def of(self, k: int, *categories: str) -> None:
        if self.category(k) not in categories:
            wanted = {"b": "a bool", "i": "an integer"}[categories[0]]
            value = self.values[k]
            dtype = str(dtype_of_number(value.category) if isinstance(value, Number) else torch_dtype(value.dtype))
            hint = ": compare it, as in x != 0.0" if categories == ("b",) else ": write i32(…)"
            raise self.error(f"{self.name()} takes {wanted} here, not {dtype.removeprefix('torch.')}{hint}", k)

    def build(self, make: Callable[..., Expr], as_float: bool = False, among: slice = slice(None)) -> Value:
        """``make(*expressions)`` of operands brought to one dtype, which the result has, too."""
        values = self.values[among]
        if all(isinstance(v, Number) for v in values):
            numbers: Any = values
            category = "f" if as_float else max((n.category for n in numbers), key="bif".index)
            return Number(category, lambda dtype: make(*[n.make(dtype) for n in numbers]))
        dtype = promoted(values)
        if as_float and not torch_dtype(dtype).is_floating_point:
            dtype = dtypes.of(torch.get_default_dtype()).name
        rank = min(v.rank for v in values if isinstance(v, Element))
        return Element(make(*[self.lowering.element(v, dtype) for v in values]), dtype, rank)

    def test(self, make: Callable[..., Expr]) -> Value:
        """``make(*expressions)``, a truth value, of operands brought to one dtype."""
        if all(isinstance(v, Number) for v in self.values):
            numbers: Any = self.values
            category = max((n.category for n in numbers), key="bif".index)
            dtype = {"b": "bool", "i": "i64"}.get(category, "f32")
            expr = make(*[n.make(dtype) for n in numbers])
            return Number("b", lambda dtype: ops.to_dtype(expr, dtype))
        value = self.build(make)
        assert isinstance(value, Element)
        return Element(value.expr, "bool", value.rank)


@dataclass(frozen=True)
class Function:
    """A function of WGSL: how many operands it takes, and what it makes of them."""

    least: int
    most: int
    apply: Callable[[Operands], Value]


def row(name: str) -> Callable[..., Expr]:
    return lambda *operands: folded(name, *operands)


def of_floats(make: Callable[..., Expr], arity: int = 1) -> Function:
    """A function of floating-point numbers; integers become such."""

    def apply(operands: Operands) -> Value:
        operands.numeric()
        return operands.build(make, as_float=True)

    return Function(arity, arity, apply)


def of_numbers(make: Callable[..., Expr], arity: int) -> Function:
    """A function of numbers of any dtype."""

    def apply(operands: Operands) -> Value:
        operands.numeric()
        return operands.build(make)

    return Function(arity, arity, apply)


def rounding(name: str) -> Function:
    """A function that leaves integers as they are."""

    def apply(operands: Operands) -> Value:
        operands.numeric()
        return operands.build(lambda x: folded(name, x) if is_float(x) else x)

    return Function(1, 1, apply)


def comparison(name: str) -> Function:
    def apply(operands: Operands) -> Value:
        kinds = {operands.category(0), operands.category(1)}
        if "b" in kinds and kinds != {"b"}:
            operands.numeric()
        return operands.test(row(name))

    return Function(2, 2, apply)


def of_bools(name: str, arity: int) -> Function:
    def apply(operands: Operands) -> Value:
        for k in range(arity):
            operands.of(k, "b")
        return operands.test(row(name))

    return Function(arity, arity, apply)


def of_bits(name: str, arity: int) -> Function:
    """An operator on integers, or on truth values."""

    def apply(operands: Operands) -> Value:
        for k in range(arity):
            operands.of(k, "i", "b")
        return operands.build(row(name))

    return Function(arity, arity, apply)


def shift(name: str) -> Function:
    def apply(operands: Operands) -> Value:
        for k in range(2):
            operands.of(k, "i")
        return operands.build(row(name))

    return Function(2, 2, apply)


def is_float(x: Expr) -> bool:
    return dtypes.BY_NAME[x.dtype].is_float


def test(make: Callable[..., Expr]) -> Function:
    def apply(operands: Operands) -> Value:
        operands.numeric()
        return operands.test(make)

    return Function(1, 1, apply)


def selected(operands: Operands) -> Value:
    """``select(if_false, if_true, condition)``"""
    operands.of(2, "b")
    condition = operands[2]
    test = condition.make("bool") if isinstance(condition, Number) else condition.expr
    value = operands.build(lambda no, yes: where(test, yes, no), among=slice(2))
    if isinstance(value, Element) and isinstance(condition, Element):
        return Element(value.expr, value.dtype, min(value.rank, condition.rank))
    return value


def cast(target: str) -> Function:
    """A conversion. ``f32`` is float64 where an argument is, so that an operator keeps the precision it is given."""

    def apply(operands: Operands) -> Value:
        value, low = operands[0], operands.lowering
        if isinstance(value, Number):
            category = {"bool": "b", "i32": "i", "u32": "i", "i64": "i"}.get(target, "f")
            if category == value.category:
                return value
            wide = {"b": "bool", "i": "i64", "f": "f32"}[value.category]
            inner = ops.to_dtype(value.make(wide), {"b": "bool", "i": "i64"}.get(category, "f32"))
            if category == "f":
                return Number("f", value.make)
            return Number(category, lambda dtype: ops.to_dtype(inner, dtype))
        dtype = "f64" if target == "f32" and low.double else target
        expr = ops.to_dtype(value.expr, "f32" if dtype == "f64" and low.single else dtype)
        return Element(ops.to_dtype(expr, low.computed(dtype)), dtype, value.rank)

    return Function(1, 1, apply)


def divided(a: Expr, b: Expr) -> Expr:
    """WGSL's: integers are divided towards zero."""
    return folded("truediv" if is_float(a) else "truncdiv", a, b)


def power(x: Expr, y: Expr) -> Expr:
    special = {"2.0": lambda: x * x, "3.0": lambda: x * x * x, "0.5": lambda: ops.sqrt(x), "1.0": lambda: x}
    if y.op == "const" and x.op != "const" and y.args[0] in special and is_float(x):
        return special[y.args[0]]()
    return folded("pow", x, y)


def clamped(x: Expr, low: Expr, high: Expr) -> Expr:
    return folded("minimum", folded("maximum", x, low), high)


def smooth(low: Expr, high: Expr, x: Expr) -> Expr:
    t = clamped((x - low) / (high - low), ops.like(x, 0), ops.like(x, 1))
    return t * t * (3 - 2 * t)


def stepped(edge: Expr, x: Expr) -> Expr:
    return ops.where(edge <= x, ops.like(x, 1), ops.like(x, 0))


OPERATORS: dict[str, Function] = {
    "add": of_numbers(row("add"), 2), "sub": of_numbers(row("sub"), 2), "mul": of_numbers(row("mul"), 2),
    "div": of_numbers(divided, 2), "rem": of_numbers(row("fmod"), 2), "neg": of_numbers(row("neg"), 1),
    **{name: comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "logical_and": of_bools("logical_and", 2), "logical_or": of_bools("logical_or", 2),
    "not": of_bools("logical_not", 1), "complement": of_bits("bitwise_not", 1),
    "and": of_bits("bitwise_and", 2), "or": of_bits("bitwise_or", 2), "xor": of_bits("bitwise_xor", 2),
    "shl": shift("bitwise_left_shift"), "shr": shift("bitwise_right_shift"),
}  # fmt: skip

WGSL_FLOAT = "acos acosh asin asinh atan atanh cos cosh exp exp2 log log2 sin sinh sqrt tan tanh".split()
PYTORCH_FLOAT = (
    "erf erfc erfinv erfcx expm1 log1p log10 sigmoid lgamma digamma sinc i0 i0e i1 i1e ndtr ndtri log_ndtr hypot "
    "copysign"
).split()
"""Functions that WGSL lacks, by their names in ``torch`` and ``torch.special``."""

FUNCTIONS: dict[str, Function] = {
    **{name: of_floats(row(name), TABLE[name].arity) for name in (*WGSL_FLOAT, *PYTORCH_FLOAT)},
    "abs": of_numbers(row("abs"), 1), "sign": of_numbers(row("sign"), 1),
    "min": of_numbers(row("minimum"), 2), "max": of_numbers(row("maximum"), 2), "clamp": of_numbers(clamped, 3),
    "saturate": of_floats(lambda x: clamped(x, ops.like(x, 0), ops.like(x, 1))),
    "floor": rounding("floor"), "ceil": rounding("ceil"), "trunc": rounding("trunc"), "round": rounding("round"),
    "fract": of_floats(lambda x: x - ops.floor(x)),
    "atan2": of_floats(row("atan2"), 2), "pow": of_numbers(power, 2), "ldexp": of_floats(row("ldexp"), 2),
    "inverseSqrt": of_floats(row("rsqrt")), "fma": of_floats(row("fma"), 3),
    "mix": of_floats(lambda a, b, t: a * (1 - t) + b * t, 3),
    "step": of_floats(stepped, 2), "smoothstep": of_floats(smooth, 3),
    "degrees": of_floats(lambda x: x * 57.29577951308232), "radians": of_floats(lambda x: x * 0.017453292519943295),
    "isnan": test(row("isnan")), "isinf": test(row("isinf")),
    "select": Function(3, 3, selected),
    **{name: cast(name) for name in ("f32", "f16", "i32", "u32", "i64", "bool")},
}  # fmt: skip
"""By their names in WGSL."""

OTHER_NAMES = {
    "rsqrt": "inverseSqrt", "inversesqrt": "inverseSqrt", "where": "select", "fmod": "%", "maximum": "max",
    "minimum": "min", "lerp": "mix", "float": "f32", "int": "i32", "half": "f16", "relu": "max(x, 0.0)",
    "silu": "x * sigmoid(x)", "mod": "%", "ln": "log", "fabs": "abs", "fmin": "min", "fmax": "max",
}  # fmt: skip
"""What other languages, and PyTorch, call functions."""


def function_of(call: Call) -> Function:
    if call.is_operator:
        return OPERATORS[call.function]
    function = FUNCTIONS.get(call.function)
    if function is None:
        other = OTHER_NAMES.get(call.function)
        hint = f": in WGSL write {other}" if other else did_you_mean(call.function, FUNCTIONS)
        raise call.place.error(f"there is no function {call.function!r}{hint}")
    return function
