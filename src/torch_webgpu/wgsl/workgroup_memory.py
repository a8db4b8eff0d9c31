"""How much workgroup memory a module declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache

from .module import Declaration, Module, comma_separated
from .tokens import tokens

_SIZES = {"bool": 4, "f16": 2, "f32": 4, "i32": 4, "u32": 4, "f64": 8, "i64": 8, "u64": 8}
_VECTOR = re.compile(r"vec([234])(?:<(.+)>|([fiuh]))")
_MATRIX = re.compile(r"mat([234])x([234])(?:<(.+)>|([fh]))")
_SUFFIXES = {"f": "f32", "i": "i32", "u": "u32", "h": "f16"}
_SUFFIX = re.compile(r"\b(\d+)[ui]\b")


def workgroup_bytes(module: Module, library: Mapping[str, Declaration]) -> int:
    """The bytes of a module's workgroup variables. ``library``: what its types may be declared by besides.

    ValueError for a type or a length that is not understood.
    """
    names = {**library, **module.by_name}
    total = 0
    for declaration in module.declarations:
        if declaration.kind == "var" and declaration.address_space == "workgroup":
            size, alignment = _layout(_type_of(declaration.text), names)
            total = -(-total // alignment) * alignment + size
    return total


def _type_of(text: str) -> str:
    """The type of a variable's or a member's declaration."""
    return text.partition(":")[2].partition("=")[0].strip().rstrip(";, \n")


@cache
def type_bytes(type_: str) -> int:
    """The bytes of a value of a scalar or vector type of WGSL."""
    return _layout(type_, {})[0]


def _layout(type_: str, names: Mapping[str, Declaration]) -> tuple[int, int]:
    """The size of a type in bytes, and its alignment: https://www.w3.org/TR/WGSL/#alignment-and-size."""
    type_ = type_.strip()
    if type_ in _SIZES:
        return _SIZES[type_], _SIZES[type_]
    if vector := _VECTOR.fullmatch(type_):
        count, size = int(vector[1]), _layout(vector[2] or _SUFFIXES[vector[3]], names)[0]
        return count * size, (4 if count == 3 else count) * size
    if matrix := _MATRIX.fullmatch(type_):
        rows, size = int(matrix[2]), _layout(matrix[3] or _SUFFIXES[matrix[4]], names)[0]
        column = (4 if rows == 3 else rows) * size
        return int(matrix[1]) * column, column
    if type_.startswith("atomic<"):
        return _layout(type_[len("atomic<") : -1], names)
    if type_.startswith("array<"):
        element, _, length = type_[len("array<") : -1].rpartition(",")
        size, alignment = _layout(element, names)
        return _length(length, names) * (-(-size // alignment) * alignment), alignment
    declaration = names.get(type_)
    if declaration is not None and declaration.kind == "alias":
        return _layout(declaration.text.partition("=")[2].strip().rstrip(";"), names)
    if declaration is not None and declaration.kind == "struct":
        return _struct(declaration.text, names)
    raise ValueError(f"the size of {type_!r} is not known")


def _struct(text: str, names: Mapping[str, Declaration]) -> tuple[int, int]:
    end, widest = 0, 1
    for member in comma_separated(tokens(text[text.index("{") + 1 : text.rindex("}")])):
        size, alignment = _layout(_type_of(member), names)
        end, widest = -(-end // alignment) * alignment + size, max(widest, alignment)
    return -(-end // widest) * widest, widest


def _length(text: str, names: Mapping[str, Declaration]) -> int:
    """The value of a constant expression over integers."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in names and names[node.id].kind == "const":
            return _length(names[node.id].text.partition("=")[2].strip().rstrip(";"), names)
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div) and right:
                return left // right
        raise ValueError(f"the length {text!r} is not known")

    try:
        return value(ast.parse(_SUFFIX.sub(r"\1", text.strip()), mode="eval"))
    except SyntaxError:
        raise ValueError(f"the length {text!r} is not known") from None
