"""Expressions as WGSL statements: one ``let`` per distinct subexpression, conversions spelled out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import copysign, frexp, isfinite, isinf

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.ops import TABLE

from .kernel import ParamType

Leaf = Callable[[Expr], str]

# How a value of one kind becomes another, as C and PyTorch do it.
_CONVERT: dict[tuple[str, str], str] = {
    ("b", "i"): "select(0, 1, {0})",
    ("b", "u"): "select(0u, 1u, {0})",
    ("b", "f"): "select(0.0, 1.0, {0})",
    ("b", "d"): "f64(select(0.0, 1.0, {0}))",
    ("b", "l"): "i64_from_u32(select(0u, 1u, {0}))",
    ("b", "c"): "vec2<f32>(select(0.0, 1.0, {0}), 0.0)",
    ("i", "b"): "({0} != 0)",
    ("i", "u"): "u32({0})",
    ("i", "f"): "f32({0})",
    ("i", "d"): "f64({0})",
    ("i", "l"): "i64_from_i32({0})",
    ("i", "c"): "vec2<f32>(f32({0}), 0.0)",
    ("u", "b"): "({0} != 0u)",
    ("u", "i"): "i32({0})",
    ("u", "f"): "f32({0})",
    ("u", "d"): "f64({0})",
    ("u", "l"): "i64_from_u32({0})",
    ("u", "c"): "vec2<f32>(f32({0}), 0.0)",
    ("f", "b"): "bool_from_f32({0})",
    ("f", "i"): "i32_from_f32({0})",
    ("f", "u"): "u32_from_f32({0})",
    ("f", "d"): "f64({0})",
    ("f", "l"): "i64_from_f32({0})",
    ("f", "c"): "vec2<f32>({0}, 0.0)",
    ("d", "b"): "(!({0} == f64(0.0)))",
    ("d", "i"): "i64_to_i32(i64_from_f64({0}))",
    ("d", "u"): "i64_to_u32(i64_from_f64({0}))",
    ("d", "f"): "f32({0})",
    ("d", "l"): "i64_from_f64({0})",
    ("d", "c"): "vec2<f32>(f32({0}), 0.0)",
    ("l", "b"): "(!i64_is_zero({0}))",
    ("l", "i"): "i64_to_i32({0})",
    ("l", "u"): "i64_to_u32({0})",
    ("l", "f"): "i64_to_f32({0})",
    ("l", "d"): "i64_to_f64({0})",
    ("l", "c"): "vec2<f32>(i64_to_f32({0}), 0.0)",
    ("c", "b"): "bool_from_c64({0})",
    ("c", "f"): "{0}.x",
    ("c", "i"): "i32_from_f32({0}.x)",
    ("c", "u"): "u32_from_f32({0}.x)",
    ("c", "d"): "f64({0}.x)",
    ("c", "l"): "i64_from_f32({0}.x)",
}


def convert(text: str, source: str, target: str, fits: bool = False) -> str:
    """WGSL for ``text`` of dtype ``source`` as dtype ``target``; ``fits`` leaves out rounding and wrapping."""
    a, b = BY_NAME[source], BY_NAME[target]
    if a.kind != b.kind:
        text = _CONVERT[a.kind, b.kind].format(text)
    if fits or source == target or not b.narrow or (b.is_integer and source == "bool"):
        return text
    return b.narrow.format(text)


def float_literal(value: float) -> str:
    """An f32 literal; infinities and NaN go through functions, since WGSL has no literals for them."""
    if value != value:
        return "nan_f()"
    value = _f32(value)
    if isinf(value):
        return "inf_f()" if value > 0 else "(-inf_f())"
    # Parentheses, since "--" is a token of its own in WGSL.
    return f"({value!r}f)" if copysign(1.0, value) < 0 else f"{value!r}f"


def double_literal(value: float) -> str:
    """An f64 literal."""
    return f"({value!r}lf)" if isfinite(value) else f"f64({float_literal(value)})"


def compute_type(dtype: str) -> str:
    """The WGSL type that values of ``dtype`` have."""
    return BY_NAME[dtype].compute


def literal(text: str, dtype: str) -> str:
    """WGSL for a ``const`` leaf."""
    kind = BY_NAME[dtype].kind
    if kind == "b":
        return "true" if text == "True" else "false"
    if kind == "f":
        return float_literal(float(text))
    if kind == "d":
        return double_literal(float(text))
    if kind == "c":
        value = complex(text)
        return f"vec2<f32>({float_literal(value.real)}, {float_literal(value.imag)})"
    value = int(text)
    if kind == "u":
        return f"{value & 0xFFFFFFFF}u"
    if kind == "l":
        return f"i64_make({value & 0xFFFFFFFF}u, {(value >> 32) & 0xFFFFFFFF}u)"
    value = ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000
    return f"({value})" if value > -0x80000000 else "i32(-2147483648)"


def emit(roots: Sequence[Expr], leaf: Leaf, prefix: str = "v", indent: str = "  ") -> tuple[list[str], list[str]]:
    """Statements that compute ``roots``, and the name holding each root.

    ``leaf`` gives the WGSL of a load, param, index, linear or acc expression.
    """
    names: dict[Expr, str] = {}
    lines: list[str] = []
    for expr in walk(roots):
        if expr.op == "const":
            names[expr] = literal(expr.args[0], expr.dtype)
            continue
        if expr.op == "to_dtype":
            text = convert(names[expr.args[0]], expr.args[0].dtype, expr.dtype)
        elif expr.op in TABLE:
            text = _apply(expr, names)
        elif expr.op == "call":
            function, *operands = expr.args
            text = f"{function.name}({', '.join([names[x] for x in operands])})"
        else:
            text = leaf(expr)
        name = f"{prefix}{len(lines)}"
        lines.append(f"{indent}let {name}: {compute_type(expr.dtype)} = {text};")
        names[expr] = name
    return lines, [names[root] for root in roots]


def stored(root: Expr, dtype: str) -> Expr:
    """``root`` without a last rounding or wrapping that storing as ``dtype`` does anyway."""
    if root.op == "to_dtype" and root.dtype == dtype and BY_NAME[root.args[0].dtype].kind == BY_NAME[dtype].kind:
        return root.args[0]
    return root


def emit_stored(
    roots: Sequence[Expr], dtypes: Sequence[str], leaf: Leaf, prefix: str = "v", indent: str = "  "
) -> tuple[list[str], list[str]]:
    """Statements that compute ``roots``, and the WGSL of each as what is stored as its dtype."""
    roots = [stored(root, dtype) for root, dtype in zip(roots, dtypes, strict=True)]
    lines, names = emit(roots, leaf, prefix, indent)
    return lines, [convert(x, e.dtype, dtype, fits=True) for x, e, dtype in zip(names, roots, dtypes, strict=True)]


def function(signature: str, result: str, lines: Sequence[str], value: str) -> list[str]:
    """A function that returns ``value``, of type ``result``, after these statements."""
    return [f"fn {signature} -> {result} {{", *lines, f"  return {value};", "}"]


def scalar_function(name: str, result: Expr, *arguments: Expr, leaf: Leaf = lambda e: e.args[0]) -> list[str]:
    """A function of scalars, whose names are what the leaves ``arguments`` have."""
    lines, (value,) = emit([result], leaf)
    declared = ", ".join(f"{e.args[0]}: {compute_type(e.dtype)}" for e in arguments)
    return function(f"{name}({declared})", compute_type(result.dtype), lines, value)


def struct_function(
    signature: str, struct: str, fields: Sequence[str], lines: Sequence[str], values: Sequence[str]
) -> list[str]:
    """A struct and a function that returns one."""
    declared = f"struct {struct} {{ {', '.join(fields)} }}"
    return [declared, *function(signature, struct, lines, f"{struct}({', '.join(values)})")]


def _apply(expr: Expr, names: dict[Expr, str]) -> str:
    row = TABLE[expr.op]
    text = row.wgsl[BY_NAME[expr.args[0].dtype].kind].format(*(names[arg] for arg in expr.args))
    if BY_NAME[expr.args[-1].dtype].kind == "f":
        text = _guarded(expr, names) or text
    result = BY_NAME[expr.dtype]
    return result.narrow.format(text) if result.narrow and (row.wraps or result.is_float) else text


_PARTS: dict[str, tuple[ParamType, ...]] = {
    "f": ("f32",),
    "l": ("u32", "u32"),
    "d": ("f32", "f32", "f32", "i32"),
    "c": ("f32", "f32"),
    "u": ("u32",),
}


# A number with itself.
_OF_ITSELF = {
    "sub": "zero_of_f({0})",
    "truediv": "one_of_f({0})",
    "eq": "(!isnan_f({0}))",
    "le": "(!isnan_f({0}))",
    "ge": "(!isnan_f({0}))",
    "ne": "isnan_f({0})",
}


def _guarded(expr: Expr, names: dict[Expr, str]) -> str | None:
    """Text for what drivers compile as if there were no NaN or infinity; None for what they do right.

    Both Mesa and NVIDIA fold ``x - x`` and ``x * 0`` to 0, and NVIDIA makes a minimum or maximum, which drop a NaN, of
    a comparison that selects one of the numbers it compares; it also decides ``x == x`` and ``x / x`` without looking.
    """
    if len(expr.args) == 2 and expr.args[0] is expr.args[1] and expr.op in _OF_ITSELF:
        return _OF_ITSELF[expr.op].format(names[expr.args[0]])
    if expr.op == "mul":
        for x, factor in (expr.args, expr.args[::-1]):
            if factor.op == "const" and float(factor.args[0]) == 0:
                return f"times_zero_f({names[x]}, {names[factor]})"
    if expr.op == "where":
        condition, *choices = expr.args
        if condition.op in ("lt", "le", "gt", "ge") and set(condition.args) == set(choices):
            numbers = [names[x] for x in condition.args if x.op != "const"]
            ordered = " && ".join([names[condition], *(f"!isnan_f({x})" for x in numbers)])
            return f"select({names[choices[1]]}, {names[choices[0]]}, {ordered})"
    return None


def param_parts(kind: str) -> tuple[ParamType, ...]:
    """The types of the 4-byte parts that carry a scalar argument of ``kind``."""
    return _PARTS.get(kind, ("i32",))


def join_param(name: str, kind: str) -> str:
    """WGSL that puts the parts of scalar argument ``name`` together again."""
    if kind == "l":
        return f"i64_make(P.{name}_0, P.{name}_1)"
    if kind == "d":
        return f"f64_join(P.{name}_0, P.{name}_1, P.{name}_2, P.{name}_3)"
    if kind == "c":
        return f"vec2<f32>(P.{name}_0, P.{name}_1)"
    return f"(P.{name}_0 != 0)" if kind == "b" else f"P.{name}_0"


FLOAT_MAX = 3.4028234663852886e38


def split_scalar(value: float | int | bool | complex, kind: str) -> tuple[int | float, ...]:
    """The 4-byte parts of a Python scalar, in the order of :func:`param_parts`."""
    if kind == "f":
        x = float(value)  # type: ignore[arg-type]
        # Packing rounds what is in range.
        return (x if -FLOAT_MAX <= x <= FLOAT_MAX else _f32(x),)
    if kind == "l":
        n = int(value)  # type: ignore[arg-type]
        return (n & 0xFFFFFFFF, (n >> 32) & 0xFFFFFFFF)
    if kind == "d":
        return _split_double(float(value))  # type: ignore[arg-type]
    if kind == "c":
        z = complex(value)
        return (_f32(z.real), _f32(z.imag))
    if kind == "b":
        return (int(bool(value)),)
    if kind == "u" and isinstance(value, int) and 0 <= value <= 0xFFFFFFFF:
        return (value,)  # as it is: captured graphs know the numbers that they change by their class
    n = int(value)  # type: ignore[arg-type]
    return (n & 0xFFFFFFFF,) if kind == "u" else (((n + 0x80000000) & 0xFFFFFFFF) - 0x80000000,)


def _split_double(value: float) -> tuple[int | float, ...]:
    """A mantissa in [1, 2) as the exact sum of three f32 (Dekker's splitting), and its exponent."""
    if not isfinite(value):
        return (value, 0.0, 0.0, 0)
    if value == 0:
        return (value, value, value, 0)  # -0.0 + 0.0 has no sign
    half, exponent = frexp(value)
    rest = 2 * half
    parts = []
    for _ in range(3):
        parts.append(_f32(rest))
        rest -= parts[-1]
    return (*parts, exponent - 1)


def _f32(value: float) -> float:
    """``value`` rounded to f32, overflowing to infinity (``struct`` would raise)."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
