"""The op table: its templates are sound, and expressions are built as promised."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from torch_webgpu.dtypes import BY_NAME
from torch_webgpu.ir.expr import Expr, walk
from torch_webgpu.ir.ops import TABLE, MissingKindError, Row, ops
from torch_webgpu.target import named
from torch_webgpu.wgsl.link import library

WGSL_BUILTINS = frozenset("abs all ceil floor fma max min round select sign sqrt trunc u32 vec2 f32".split())
LIBRARY = library(named("h200-dawn")).keys()
KINDS = {dtype.kind for dtype in BY_NAME.values()}
TEMPLATES = [(row, kind, text) for row in TABLE.values() for kind, text in row.wgsl.items()]


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)
def test_every_function_of_the_table_exists(row: Row) -> None:
    called = {name for text in row.wgsl.values() for name in re.findall(r"([A-Za-z_]\w*)(?:<\w+>)?\(", text)}
    assert called - WGSL_BUILTINS <= LIBRARY


@pytest.mark.parametrize(("row", "kind", "text"), TEMPLATES, ids=lambda v: v if isinstance(v, str) else v.name)
def test_templates_use_every_operand(row: Row, kind: str, text: str) -> None:
    used = {int(field) for _, field, _, _ in Formatter().parse(text) if field is not None}
    assert kind in KINDS
    assert row.result in ("same", "second", *BY_NAME)
    # A template may ignore all operands (an integer is never NaN), but not some.
    assert used in (set(), set(range(row.arity)))


def test_equal_expressions_are_one_object() -> None:
    a, b = ops.load(0, "f32"), ops.load(1, "f32")
    assert ops.add(a, b) is a + b
    assert ops.add(a, b) is not ops.add(b, a)
    assert ops.constant(1, "f32") is ops.constant(1.0, "f32")
    assert ops.constant(1, "i32") is not ops.constant(1, "i64")
    assert ops.constant(0.0, "f32") is not ops.constant(-0.0, "f32")


def test_numbers_become_constants_of_the_other_operands_dtype() -> None:
    x = ops.load(0, "i64")
    assert (x + 1).args[1] is ops.constant(1, "i64")
    assert (2 - x).args[0] is ops.constant(2, "i64")
    assert ops.where(x > 0, 0, x) is ops.where(ops.gt(x, ops.constant(0, "i64")), ops.constant(0, "i64"), x)


@pytest.mark.parametrize(
    ("build", "row"),
    [
        (lambda a, b: a + b, "add"),
        (lambda a, b: a - b, "sub"),
        (lambda a, b: a * b, "mul"),
        (lambda a, b: a / b, "truediv"),
        (lambda a, b: a < b, "lt"),
        (lambda a, b: a <= b, "le"),
        (lambda a, b: a > b, "gt"),
        (lambda a, b: a >= b, "ge"),
        (lambda a, b: -a, "neg"),
        (lambda a, b: abs(a), "abs"),
    ],
)
def test_operators_are_rows(build, row: str) -> None:
    a, b = ops.load(0, "f32"), ops.load(1, "f32")
    built = build(a, b)
    assert built.op == row
    assert built.args == (a, b)[: len(built.args)]


def test_bitwise_operators_are_rows() -> None:
    a, b = ops.load(0, "i32"), ops.load(1, "i32")
    assert [(a & b).op, (a | b).op, (~a).op] == ["bitwise_and", "bitwise_or", "bitwise_not"]


def test_nothing_converts_implicitly() -> None:
    with pytest.raises(TypeError, match="add of operands of several dtypes: f32, i32"):
        ops.add(ops.load(0, "f32"), ops.load(1, "i32"))
    with pytest.raises(TypeError, match="where"):
        ops.where(ops.load(0, "bool"), ops.load(1, "f32"), ops.load(2, "f16"))


def test_results_have_the_rows_dtype() -> None:
    x, z = ops.load(0, "f16"), ops.load(1, "c64")
    assert (x + x).dtype == "f16"
    assert (x < x).dtype == "bool"
    assert ops.where(x < x, x, x).dtype == "f16"
    assert ops.abs_complex(z).dtype == "f32"
    assert ops.frexp_exponent(x).dtype == "i32"


def test_missing_kinds_and_rows_say_so() -> None:
    with pytest.raises(MissingKindError, match="no kernel computes i0 in float64"):
        ops.i0(ops.load(0, "f64"))
    with pytest.raises(AttributeError, match="no row 'frobnicate'"):
        ops.frobnicate(ops.load(0, "f32"))


def test_walk_meets_operands_first_and_once() -> None:
    x = ops.load(0, "f32")
    shared = ops.exp(x)
    root = shared * shared + x
    order: list[Expr] = list(walk([root, shared]))
    assert len(order) == len(set(order)) == 4
    assert all(order.index(arg) < order.index(e) for e in order for arg in e.args if isinstance(arg, Expr))
