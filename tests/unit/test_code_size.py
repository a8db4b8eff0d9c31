"""How much code expressions are, and what is written for much of it."""

from __future__ import annotations

import pytest

from torch_webgpu.ir.expr import Expr, WgslFunction
from torch_webgpu.ir.operation import Operation, Pointwise, Reduction, Spec
from torch_webgpu.ir.ops import TABLE, ops
from torch_webgpu.target import Target
from torch_webgpu.wgsl.code_size import MAX_CODE, MAX_UNROLLED, code_size
from torch_webgpu.wgsl.link import link
from torch_webgpu.wgsl.pointwise import build_pointwise
from torch_webgpu.wgsl.quads import QUAD
from torch_webgpu.wgsl.reduction import build_reduction

X = ops.load(0, "f32")
TARGET = Target(int64=True, float16=False, float64=True, immediates_bytes=128, max_binding_bytes=1 << 27)


def test_operators_and_built_in_functions_are_one_each() -> None:
    assert code_size([X]) == 1
    assert code_size([X + 1.0]) == 3, "a load, a constant and the sum"
    assert code_size([ops.floor(X)]) == 2
    assert code_size([X + X]) == 2, "what occurs twice is computed once"


def test_a_function_is_as_much_as_what_it_calls() -> None:
    twice = "fn twice_tanh(x: f32) -> f32 { return tanh_f(x) * tanh_f(x); }"
    four = WgslFunction(
        "four_tanh", f"{twice}\nfn four_tanh(x: f32) -> f32 {{ return twice_tanh(x) + twice_tanh(x); }}"
    )
    own = code_size([ops.tanh(X)]) - 1
    assert code_size([Expr("call", (four, X), "f32")]) - 1 == 4 * own + 3


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if "f" in row.wgsl and row.arity < 3))
def test_every_function_fits_into_a_kernel(name: str) -> None:
    row = TABLE[name]
    assert 1 < code_size([getattr(ops, name)(*[X, ops.load(1, "f32")][: row.arity])]) <= 1.1 * MAX_CODE


def pointwise(root: Expr, dtype: str = "f32") -> str:
    spec = Spec(dtype, (1024,), (1,))
    op = Operation("test", (spec, spec), 1, Pointwise((ops.to_dtype(root, dtype),)))
    return build_pointwise(op, (0, 1), False).kernel.body


def heavy(x: Expr) -> Expr:
    """More than a kernel should have four copies of."""
    root = x
    while QUAD * code_size([root]) <= MAX_UNROLLED:
        root = ops.bessel_y0(root)
    return root


def test_much_code_is_there_once() -> None:
    assert pointwise(ops.tanh(X)).count("= point(") == QUAD
    text = pointwise(heavy(X))
    assert text.count("point(t)") == 1
    assert "load4" not in text


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_much_code_for_packed_outputs_is_a_loop(dtype: str) -> None:
    x = ops.to_dtype(ops.load(0, dtype), "f32")
    text = pointwise(heavy(x), dtype)
    assert text.count("= point(") == 1
    assert "for (var e = 0u; e < 2u;" in text


def test_a_reduction_of_much_code_takes_points_one_by_one() -> None:
    def points(value: Expr) -> int:
        body = Reduction((64, 4096), (1,), (value,), ("sum",), (ops.acc(0, "f32"),))
        op = Operation("sum", (Spec("f32", (64, 4096), (4096, 1)), Spec("f32", (64,), (1,))), 1, body)
        kernel = build_reduction(op, (0, 1)).launches[0].kernel
        assert link(kernel, TARGET).source
        return kernel.body.count("contribution(") - 1

    ordinary, much = points(ops.exp(X)), points(heavy(X))
    assert much < ordinary / QUAD
