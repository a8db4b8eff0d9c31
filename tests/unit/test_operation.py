"""Operations are values: what is equal is the same object, also when it comes from elsewhere."""

from __future__ import annotations

import copy
import pickle

import pytest

from torch_webgpu.ir.expr import Expr, WgslFunction
from torch_webgpu.ir.operation import Body, Extern, ForEach, Number, Operation, Pointwise, Reduction, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.kernels.matmul import matmul
from torch_webgpu.kernels.spatial import im2col

MATRIX = Spec("f32", (6, 6), (6, 1))


def patches(stride: int) -> Extern:
    return im2col.unfold(im2col.PatchGeometry((2, 2), (1, 1), (0, 0), (stride, stride)))


def made() -> dict[str, Body]:
    """Bodies of every kind, made anew."""
    x = ops.load(0, "f32")
    call = Expr("call", (WgslFunction("own", "fn own(x: f32) -> f32 { return x; }"), x), "f32")
    return {
        "pointwise": Pointwise((ops.exp(x) * 2 + x,)),
        "own function": Pointwise((call,)),
        "reduction": Reduction((6, 6), (1,), (x,), ("sum",), (ops.acc(0, "f32"),)),
        "lists": ForEach((x + ops.param(0, "f32"),), ("elements",) * 2, (Number("f", False),), ((6, 6),), ((6, 1),)),
        "product": matmul.extern("f32", 2),
        "hand-written": patches(1),
    }


def operation(body: Body) -> Operation:
    return Operation("test", (MATRIX, MATRIX), 1, body, ("f",))


@pytest.mark.parametrize("kind", made())
def test_equal_operations_are_the_same(kind: str) -> None:
    op = operation(made()[kind])
    assert operation(made()[kind]) is op
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.deepcopy(op) is op


def test_what_decides_the_code_tells_operations_apart() -> None:
    x, body = ops.load(0, "f32"), Pointwise((ops.load(0, "f32"),))
    bodies = [*made().values(), body, Pointwise((-x,)), patches(2), matmul.extern("f32"), matmul.extern("f16")]
    others = [
        Operation("other", (MATRIX, MATRIX), 1, body, ("f",)),
        Operation("test", (MATRIX, MATRIX._replace(aligned=False)), 1, body, ("f",)),
        Operation("test", (MATRIX, MATRIX), 2, body, ("f",)),
        Operation("test", (MATRIX, MATRIX), 1, body),
    ]
    assert len({*map(operation, bodies), *others}) == len(bodies) + len(others)
