"""Types of WGSL as text: what their parts are, and how they lie in memory.

A type is written without blanks (``array<vec4<f32>,4>``). Short names (``vec4f``) and aliases are resolved first.
https://www.w3.org/TR/WGSL/#memory-layouts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .module import Declaration, comma_separated
from .tokens import is_trivia, last_name, significant_tokens, tokens

SCALAR_BYTES = {"bool": 4, "f16": 2, "f32": 4, "i32": 4, "u32": 4, "f64": 8, "i64": 8, "u64": 8}
_LETTERS = {"f": "f32", "i": "i32", "u": "u32", "h": "f16"}
_SHORT = re.compile(r"(vec[234]|mat[234]x[234])([fiuh])")
_MATRIX = re.compile(r"mat([234])x([234])")
_VECTOR = re.compile(r"vec([234])")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[ui]\b")
_MAX_SCALARS = 4096
Names = Mapping[str, Declaration]
"""The module's declarations by name."""


class UnknownTypeError(ValueError):
    """A type, or a constant, that is not understood."""


class Member(NamedTuple):
    """A member of a struct, with what its ``@size`` and ``@align`` say, 0 without."""

    name: str
    type: str
    size: int
    alignment: int


class Layout(NamedTuple):
    """The bytes of a value, and what they are aligned to. A runtime-sized array, or a struct that ends in one, has the
    bytes of one element.
    """

    size: int
    alignment: int


def parts(type_: str) -> tuple[str, tuple[str, ...]]:
    """The name of a type, and the arguments in its template list: ``array<f32,4>`` is array, (f32, 4)."""
    name, opened, rest = type_.partition("<")
    if not opened:
        return name, ()
    return name, tuple(comma_separated(tokens(rest[: rest.rindex(">")])))


def resolved(type_: str, names: Names) -> str:
    """A type without blanks, aliases and short names on its outside."""
    type_ = "".join(significant_tokens(type_))
    for _ in range(len(names) + 1):
        if short := _SHORT.fullmatch(type_):
            return f"{short[1]}<{_LETTERS[short[2]]}>"
        declaration = names.get(type_)
        if declaration is None or declaration.kind != "alias":
            return type_
        type_ = "".join(significant_tokens(declaration.text.partition("=")[2].strip().rstrip(";")))
    raise UnknownTypeError(f"the alias {type_} is of itself")


def vector_length(type_: str) -> int:
    """The components of a resolved vector type, 0 of another type."""
    vector = _VECTOR.fullmatch(parts(type_)[0])
    return int(vector[1]) if vector else 0


def matrix_shape(type_: str) -> tuple[int, int]:
    """The columns and rows of a resolved matrix type, zeros of another type."""
    matrix = _MATRIX.fullmatch(parts(type_)[0])
    return (int(matrix[1]), int(matrix[2])) if matrix else (0, 0)


def is_runtime_array(type_: str) -> bool:
    """Whether a resolved type is an array whose length the buffer decides."""
    name, arguments = parts(type_)
    return name == "array" and len(arguments) == 1


def members(declaration: Declaration, names: Names) -> list[Member]:
    """Those of a struct, in their order."""
    text = declaration.text
    result = []
    for member in comma_separated(tokens(text[text.index("{") + 1 : text.rindex("}")])):
        sequence = [token for token in tokens(member) if not is_trivia(token)]
        colon = sequence.index(":")
        said = {"@size": 0, "@align": 0}
        for k, token in enumerate(sequence[:colon]):
            attribute = f"@{last_name(token)}" if token[0] == "@" else ""
            if attribute in said:
                said[attribute] = constant("".join(sequence[k + 2 : sequence.index(")", k)]), names)
        result.append(Member(sequence[colon - 1], "".join(sequence[colon + 1 :]), said["@size"], said["@align"]))
    return result


def layout(type_: str, names: Names) -> Layout:
    """How a type lies in memory. UnknownTypeError for one that is not understood."""
    type_ = resolved(type_, names)
    name, arguments = parts(type_)
    if type_ in SCALAR_BYTES:
        return Layout(SCALAR_BYTES[type_], SCALAR_BYTES[type_])
    if name == "atomic" and len(arguments) == 1:
        return layout(arguments[0], names)
    if length := vector_length(type_):
        size = layout(_element(type_, arguments), names).size
        return Layout(length * size, (4 if length == 3 else length) * size)
    columns, rows = matrix_shape(type_)
    if columns:
        size = layout(_element(type_, arguments), names).size
        column = (4 if rows == 3 else rows) * size
        return Layout(columns * column, column)
    if name == "array" and arguments:
        stride = array_stride(arguments[0], names)
        count = 1 if len(arguments) == 1 else constant(arguments[1], names)
        return Layout(count * stride, layout(arguments[0], names).alignment)
    declaration = names.get(type_)
    if declaration is not None and declaration.kind == "struct":
        end, widest = 0, 1
        for offset, member in member_offsets(declaration, names):
            own = layout(member.type, names)
            end, widest = offset + (member.size or own.size), max(widest, member.alignment or own.alignment)
        return Layout(-(-end // widest) * widest, widest)
    raise UnknownTypeError(f"the type {type_!r} is not known")


def _element(type_: str, arguments: Sequence[str]) -> str:
    if len(arguments) != 1:
        raise UnknownTypeError(f"the element type of {type_!r} is missing")
    return arguments[0]


def array_stride(element: str, names: Names) -> int:
    """The bytes from one element of an array to the next."""
    size, alignment = layout(element, names)
    return -(-size // alignment) * alignment


def member_offsets(declaration: Declaration, names: Names) -> list[tuple[int, Member]]:
    """The members of a struct, each with the byte where it starts."""
    end, result = 0, []
    for member in members(declaration, names):
        size, alignment = layout(member.type, names)
        alignment = member.alignment or alignment
        start = -(-end // alignment) * alignment
        result.append((start, member))
        end = start + (member.size or size)
    return result


def scalars(type_: str, names: Names) -> list[str]:
    """The scalar types that a value is made of, in their order; of a runtime-sized array those of one element."""
    type_ = resolved(type_, names)
    name, arguments = parts(type_)
    if type_ in SCALAR_BYTES:
        return [type_]
    if name == "atomic":
        return scalars(arguments[0], names)
    columns, rows = matrix_shape(type_)
    count = vector_length(type_) or columns * rows
    if count:
        return [resolved(_element(type_, arguments), names)] * count
    if name == "array" and arguments:
        count = 1 if len(arguments) == 1 else constant(arguments[1], names)
        own = scalars(arguments[0], names)
        if count * len(own) > _MAX_SCALARS:
            raise UnknownTypeError(f"{type_!r} is too large")
        return own * count
    declaration = names.get(type_)
    if declaration is not None and declaration.kind == "struct":
        return [scalar for member in members(declaration, names) for scalar in scalars(member.type, names)]
    raise UnknownTypeError(f"the type {type_!r} is not known")


def constant(text: str, names: Names) -> int:
    """The value of a constant expression over integers. UnknownTypeError for another one."""
    return _Constant(names).of(text)


class _Constant:
    """Evaluates constant expressions over the constants of a module, each of which may name others."""

    def __init__(self, names: Names, depth: int = 0) -> None:
        self._names, self._depth = names, depth

    def of(self, text: str) -> int:
        try:
            return self._value(ast.parse(_SUFFIX.sub(r"\1", text.strip()), mode="eval").body)
        except (SyntaxError, RecursionError):
            raise UnknownTypeError(f"the value of {text.strip()!r} is not known") from None

    def _value(self, node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand)
        if isinstance(node, ast.Name):
            declaration = self._names.get(node.id)
            if declaration is not None and declaration.kind == "const" and self._depth < len(self._names):
                value = declaration.text.partition("=")[2].strip().rstrip(";")
                return _Constant(self._names, self._depth + 1).of(value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("u32", "i32"):
            (argument,) = node.args
            return self._value(argument)
        if isinstance(node, ast.BinOp):
            return self._operation(node.op, self._value(node.left), self._value(node.right))
        raise UnknownTypeError(f"the value of {ast.unparse(node)!r} is not known")

    @staticmethod
    def _operation(operator: ast.operator, left: int, right: int) -> int:
        if isinstance(operator, ast.Add):
            return left + right
        if isinstance(operator, ast.Sub):
            return left - right
        if isinstance(operator, ast.Mult):
            return left * right
        if isinstance(operator, ast.Div) and right:
            return left // right
        if isinstance(operator, ast.Mod) and right:
            return left % right
        if isinstance(operator, ast.LShift) and 0 <= right < 32:
            return left << right
        if isinstance(operator, ast.RShift) and 0 <= right < 32:
            return left >> right
        raise UnknownTypeError("the value of a constant is not known")
