"""What a call of an operator made of an expression costs the host, in Python calls, beside a built-in one's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_webgpu.engine.record import engine

REPEATS = 30
MORE = 1.1
"""How many times the calls of a built-in operator's."""


def hardswish(x: Tensor) -> Any:
    return "x * clamp(x + 3.0, 0.0, 6.0) / 6.0"


def scaled(x: Tensor, y: Tensor, alpha: float) -> Any:
    return "x + y * alpha"


@pytest.fixture
def no_timer() -> Iterator[None]:
    """Nothing is flushed while calls are counted."""
    with engine().using(delay_ms=0.0):
        yield


def calls(fn: Callable[[], Any]) -> float:
    """Calls of Python and of C, for each call of ``fn``."""
    for _ in range(4):
        fn()
    torch.webgpu.synchronize()
    events: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        events[event] += 1

    sys.setprofile(note)
    try:
        for _ in range(REPEATS):
            fn()
    finally:
        sys.setprofile(None)
    torch.webgpu.synchronize()
    return (events["call"] + events["c_call"]) / REPEATS


@pytest.mark.usefixtures("no_timer")
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_a_call_costs_what_a_built_in_operator_does(
    define: Callable[..., Any], device: torch.device, mode: Callable[..., Any]
) -> None:
    one, two = define("test::hardswish")(hardswish), define("test::scaled")(scaled)
    x, y = torch.randn(2, 8, 8, device=device)
    x, y = x.clone(), y.clone()
    aten = torch.ops.aten
    with mode():
        assert calls(lambda: one(x)) <= MORE * calls(lambda: aten.hardswish.default(x))
        assert calls(lambda: two(x, y, 0.5)) <= MORE * calls(lambda: aten.lerp.Scalar(x, y, 0.5))


@pytest.mark.usefixtures("no_timer")
def test_parameters_cost_nothing_more_where_no_gradient_is_recorded(
    define: Callable[..., Any], device: torch.device
) -> None:
    one = define("test::hardswish")(hardswish)
    parameter = torch.nn.Parameter(torch.randn(8, 8, device=device))
    with torch.no_grad():
        # One more: whether gradients are recorded.
        assert calls(lambda: one(parameter)) <= MORE * calls(lambda: torch.ops.aten.hardswish.default(parameter)) + 1


@pytest.mark.usefixtures("no_timer")
def test_a_call_that_records_a_gradient_goes_through_python(define: Callable[..., Any], device: torch.device) -> None:
    """``torch.autograd.Function`` is Python; of a built-in operator that part is C++ (docs/custom-operators.md)."""
    one = define("test::hardswish")(hardswish)
    library = torch.library.custom_op("test::library", lambda x: one(x), mutates_args=(), schema="(Tensor x) -> Tensor")
    library.register_autograd(lambda ctx, g: g)
    parameter = torch.nn.Parameter(torch.randn(8, 8, device=device))
    built_in = calls(lambda: torch.ops.aten.hardswish.default(parameter))
    assert calls(lambda: one(parameter)) <= 2.2 * built_in
    # Before 2.14 PyTorch calls at least a quarter more functions for an operator of torch.library; 2.14 a tenth.
    assert calls(lambda: one(parameter)) < calls(lambda: library(parameter))


@pytest.mark.usefixtures("no_timer")
def test_calls_of_several_kinds_cost_no_more_either(define: Callable[..., Any], device: torch.device) -> None:
    """Modes, dtypes and layouts have guards of their own, which are tried one after the other."""
    x = torch.randn(8, 8, device=device)

    def after_others(fn: Callable[..., Any]) -> float:
        fn(x)
        with torch.inference_mode():
            fn(x)
        with torch.no_grad():
            fn(x.clone().requires_grad_())
        fn(x.half())
        torch.testing.assert_close(fn(x.T), fn(x).T)
        return calls(lambda: fn(x))

    built_in = after_others(torch.ops.aten.hardswish.default)
    assert after_others(define("test::hardswish")(hardswish)) <= MORE * built_in
