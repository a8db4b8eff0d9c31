"""What decides the code of operations is a key of caches: functions of modules and values, nothing that a key hides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Extern, Operation, Spec
from torch_webgpu.ir.ops import ops
from torch_webgpu.ir.values import NotAValueError, check_function, check_values


def scaled(factor: float, x: Expr) -> Expr:
    return x * factor


def scaling(factor: float) -> Callable[[Expr], Expr]:
    return lambda x: x * factor


def local() -> Callable[[Expr], Expr]:
    def same(x: Expr) -> Expr:
        return x

    return same


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, x: Expr) -> Expr:
        return x * self.factor


@dataclass
class Changeable:
    factor: float


@dataclass(frozen=True)
class Holder:
    content: Any


class Identity:
    def __call__(self, x: Expr) -> Expr:
        return x


@pytest.mark.parametrize("function", [scaled, math.exp, Scaled(2.0)], ids=["of a module", "built in", "frozen"])
def test_functions_of_modules_and_frozen_callables(function: Any) -> None:
    check_function("test", function)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (scaling(2.0), "reads factor"),
        (local(), "defined in another function"),
        (partial(scaled, 2.0), "no function of a module"),
        (Scaled(2.0).__call__, "no function of a module"),
        ([].append, "no function of a module"),
        (Identity(), "no function of a module"),
    ],
    ids=["closure", "local", "partial", "method", "builtin method", "object"],
)
def test_other_functions_are_refused(function: Any, why: str) -> None:
    with pytest.raises(NotAValueError, match=why):
        check_function("test", function)


VALUES = [
    1,
    1.0,
    True,
    None,
    "f32",
    torch.float32,
    (1, (2, "x")),
    Scaled(2.0),
    Holder((1, None)),
    scaled,
    torch.Size([2]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values(value: Any) -> None:
    check_values("test", [value])
    check_values("test", [(value,)])


@pytest.mark.parametrize(
    "value", [[1], {1: 2}, Changeable(1.0), Holder([1]), Holder(scaling(2.0)), scaling(2.0), torch.zeros(1), object()]
)
def test_what_is_no_value_is_refused_at_any_depth(value: Any) -> None:
    for argument in (value, (1, value)):
        with pytest.raises(NotAValueError):
            check_values("test", [argument])


def test_a_kernel_that_is_a_closure_is_refused() -> None:
    spec = Spec("f32", (4,), (1,))
    with pytest.raises(NotAValueError, match=r"test\.closure: .* reads factor"):
        Operation("test.closure", (spec, spec), 1, Extern(scaling(2.0)))
    with pytest.raises(NotAValueError, match=r"test\.arguments: object is no value"):
        Operation("test.arguments", (spec, spec), 1, Extern(scaled, (Holder(object()),)))


def test_rows_of_the_op_table_are_named_not_passed() -> None:
    with pytest.raises(NotAValueError, match="defined in another function"):
        check_values("test", [ops.add])
