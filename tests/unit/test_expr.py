"""Expressions as WGSL text: literals, conversions, parameters."""

from __future__ import annotations

import gc
import math
import struct
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_webgpu.aten.dispatch.scalars import cast_scalar, check_fits
from torch_webgpu.dtypes import BY_NAME, KINDS
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.ops import ops
from torch_webgpu.wgsl.expr import convert, emit, float_literal, literal, param_parts, split_scalar

NUMERIC = [name for name in BY_NAME if name not in ("c64",)]


def leaf(expr) -> str:
    return f"x{expr.args[0]}"


def test_equal_expressions_are_one_object_as_long_as_somebody_holds_it() -> None:
    def made(value: float) -> Expr:
        return ops.exp(ops.load(0, "f32") * value) + 1

    assert made(0.123) is made(0.123)
    left = weakref.ref(made(0.456))
    gc.collect()
    assert left() is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0f"),
        (-2.5, "(-2.5f)"),
        (-0.0, "(-0.0f)"),
        (0.1, "0.10000000149011612f"),
        (1e300, "inf_f()"),
        (-math.inf, "(-inf_f())"),
        (math.nan, "nan_f()"),
    ],
)
def test_float_literals(value: float, text: str) -> None:
    assert float_literal(value) == text


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, "bool", "true"),
        (-3, "i32", "(-3)"),
        (-(1 << 31), "i32", "i32(-2147483648)"),
        (1 << 31, "i32", "i32(-2147483648)"),
        (-1, "u32", "4294967295u"),
        (-1, "i64", "i64_make(4294967295u, 4294967295u)"),
        (1 << 40, "i64", "i64_make(0u, 256u)"),
        (1.5, "f64", "(1.5lf)"),
        (math.inf, "f64", "f64(inf_f())"),
        (1 - 2j, "c64", "vec2<f32>(1.0f, (-2.0f))"),
        (0.1, "bf16", "0.10000000149011612f"),
    ],
)
def test_literals(value: complex, dtype: str, text: str) -> None:
    assert literal(ops.constant(value, dtype).args[0], dtype) == text


@pytest.mark.parametrize("source", BY_NAME)
@pytest.mark.parametrize("target", BY_NAME)
def test_every_pair_of_dtypes_converts(source: str, target: str) -> None:
    text = convert("x", source, target)
    assert "x" in text
    if source == target:
        assert text == "x"


def test_narrowing_wraps_and_rounds_once() -> None:
    assert convert("x", "i64", "u8") == "(i64_to_i32(x) & 255)"
    assert convert("x", "f32", "i8") == "((i32_from_f32(x) << 24u) >> 24u)"
    assert convert("x", "f64", "bf16") == "round_bf16(f32(x))"
    assert convert("x", "f32", "f16", fits=True) == "x"
    assert convert("x", "bool", "u8") == "select(0, 1, x)"


def test_each_subexpression_is_computed_once() -> None:
    x = ops.load(0, "f32")
    shared = ops.exp(x)
    lines, names = emit([shared * shared, shared + 1], leaf)
    assert lines == [
        "  let v0: f32 = x0;",
        "  let v1: f32 = exp_f(v0);",
        "  let v2: f32 = (v1 * v1);",
        "  let v3: f32 = (v1 + 1.0f);",
    ]
    assert names == ["v2", "v3"]


def test_small_integers_wrap_and_halves_round_after_each_operation() -> None:
    lines, _ = emit([ops.load(0, "u8") + 1], leaf)
    assert lines[-1] == "  let v1: i32 = ((v0 + (1)) & 255);"
    lines, _ = emit([ops.load(0, "f16") * 2], leaf)
    assert lines[-1] == "  let v1: f32 = round_f16((v0 * 2.0f));"
    lines, _ = emit([ops.bitwise_and(ops.load(0, "u8"), 3)], leaf)
    assert lines[-1] == "  let v1: i32 = (v0 & (3));"


@pytest.mark.parametrize("kind", sorted({dtype.kind for dtype in BY_NAME.values()}))
def test_scalars_have_as_many_parts_as_parameters(kind: str) -> None:
    assert kind in KINDS
    formats = {"f32": "f", "i32": "i", "u32": "I"}
    for value in (0, 1, -1, 3.75, True, 1e30, -(1 << 70)):
        parts = split_scalar(value, kind)
        struct.pack("<" + "".join(formats[t] for t in param_parts(kind)), *parts)


@given(st.floats(allow_nan=False))
def test_doubles_travel_exactly(value: float) -> None:
    a, b, c, exponent = split_scalar(value, "d")
    assert math.ldexp(a + b + c, int(exponent)) == value or math.isinf(value)


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_integers_travel_modulo_their_width(value: int) -> None:
    low, high = split_scalar(value, "l")
    assert (int(high) << 32 | int(low)) == value % (1 << 64)
    assert split_scalar(value, "i")[0] == int(value + (1 << 31)) % (1 << 32) - (1 << 31)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(["u8", "i8", "u16", "i16"]))
def test_small_integer_scalars_wrap_as_tensors_do(value: int, dtype: str) -> None:
    assert cast_scalar(value, dtype) == torch.tensor(value).to(BY_NAME[dtype].torch).item()


@given(st.floats(width=32), st.sampled_from(["f16", "bf16"]))
def test_half_scalars_round_as_tensors_do(value: float, dtype: str) -> None:
    expected = torch.tensor(value).to(BY_NAME[dtype].torch).item()
    assert cast_scalar(value, dtype) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


@given(
    st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-300, 300), st.floats()),
    st.sampled_from(["u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "bool"]),
)
def test_numbers_are_refused_where_pytorch_refuses_them(value: float, dtype: str) -> None:
    def outcome(call) -> str:
        try:
            call()
        except RuntimeError as error:
            return str(error)
        return ""

    mask = torch.ones(1, dtype=torch.bool)
    expected = outcome(lambda: torch.zeros(1, dtype=BY_NAME[dtype].torch).masked_fill(mask, value))
    assert outcome(lambda: check_fits(value, dtype)) == expected
