"""What operators record is cached under a function of a module and the values that it is called with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("torch_webgpu")

from torch_webgpu.aten.dispatch.operations import Fold, record_kernel, record_pointwise, record_reduction
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.expr import Expr
from torch_webgpu.ir.operation import Extern
from torch_webgpu.ir.values import NotAValueError


def times(factor: float, x: Expr) -> Expr:
    return x * factor


def times_ten(factor: float, x: Expr) -> Expr:
    return x * (10 * factor)


def sum_of_multiples(factor: float, x: Expr) -> Fold:
    return Fold((x * factor,), ("sum",), lambda total: (total,))


def timed_by(factor: float) -> Callable[[Expr], Expr]:
    return lambda x: x * factor


def fold_by(factor: float) -> Callable[[Expr], Fold]:
    return lambda x: Fold((x * factor,), ("sum",), lambda total: (total,))


def test_arguments_and_functions_tell_operations_apart(device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    found = []
    for function, factor in ((times, 2.0), (times, 3.0), (times_ten, 2.0), (times, 2.0)):
        out = torch.empty_like(x)
        record_pointwise("test.times", [x], [out], function, (factor,))
        found.append(out.tolist())
    assert found == [[0, 2, 4], [0, 3, 6], [0, 20, 40], [0, 2, 4]]
    sums = []
    for factor in (2.0, 3.0):
        total = torch.empty((), device=device)
        record_reduction("test.sum", [x], [total], x.shape, (0,), sum_of_multiples, (factor,))
        sums.append(total.item())
    assert sums == [6, 9]


def test_what_is_the_same_is_one_operation(device: torch.device) -> None:
    x, out = torch.ones(5, device=device), torch.empty(5, device=device)
    record_pointwise("test.once", [x], [out], times, (2.0,))
    entries = engine().operations.entries
    record_pointwise("test.once", [x], [out], times, (2.0,))
    assert engine().operations.entries == entries
    record_pointwise("test.once", [x], [out], times, (4.0,))
    assert engine().operations.entries == entries + 1


def test_closures_are_refused(device: torch.device) -> None:
    x, out = torch.ones(3, device=device), torch.empty(3, device=device)
    with pytest.raises(NotAValueError, match=r"test\.closure: timed_by.<locals>.<lambda> .* reads factor"):
        record_pointwise("test.closure", [x], [out], timed_by(2.0))
    with pytest.raises(NotAValueError, match=r"test\.closure: fold_by.<locals>.<lambda> .* reads factor"):
        record_reduction("test.closure", [x], [out[0]], x.shape, (0,), fold_by(2.0))
    with pytest.raises(NotAValueError, match=r"test\.closure: timed_by.<locals>.<lambda> .* reads factor"):
        record_kernel("test.closure", [x], [out], Extern(timed_by(2.0)))
    with pytest.raises(NotAValueError, match="Tensor is no value"):
        record_pointwise("test.tensor", [x], [out], times, (x,))
