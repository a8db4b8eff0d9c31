"""Errors in compiled graphs: they name the node and the program's line, and the session goes on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
from tests.device.broken import record_broken
from tests.device.memory_limit import memory_limit

from torch_webgpu.compile import cache, compiled_graph
from torch_webgpu.engine.record import engine
from torch_webgpu.errors import OutOfMemoryError, ShaderCompileError
from torch_webgpu.ir.operation import Extern, Operation

from .against_eager import assert_equal, counting

MIB = 1 << 20


def not_lowered(op: Operation, alias: tuple[int, ...], target: object) -> Any:
    raise ValueError("no kernel can do this")


def record_not_lowered(x: torch.Tensor) -> torch.Tensor:
    y = engine().empty(x.shape, x.dtype, x.device.index)
    engine().record("test.not_lowered", [x], [y], Extern(not_lowered))
    return y


def broken_in_plans(x: torch.Tensor) -> torch.Tensor:
    """Only what plans run fails: eager calls double."""
    return record_broken(x) if torch.compiler.is_compiling() else x * 2


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library = torch.library.Library("webgpu_tests", "DEF")
    for name, run in (
        ("broken", record_broken),
        ("broken_in_plans", broken_in_plans),
        ("not_lowered", record_not_lowered),
    ):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.empty_like, "Meta")
        library.impl(name, run, "PrivateUse1")
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def goes_on() -> Iterator[None]:
    """After every test compiled code runs, and no error is left over."""
    yield
    torch.webgpu.synchronize()
    assert torch.compile(lambda x: x * 3 + 1)(torch.ones(2, device="webgpu")).tolist() == [4, 4]


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.ops.webgpu_tests.broken(gradient)


def line(function: Any, text: str) -> str:
    """A regular expression for a line of a function, as tracebacks show it."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [n for n, found in enumerate(lines, first) if text in found]
    found = re.escape(lines[number - first].strip())
    return rf'File ".*{Path(__file__).name}", line {number}, in {function.__name__}\n +{found}'


def around(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y = torch.ops.webgpu_tests.broken(y)
    return y.sum(0) + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_kernel_that_does_not_compile(dynamic: bool) -> None:
    compiled, x = torch.compile(around, dynamic=dynamic, fullgraph=True), torch.randn(4, device="webgpu")
    for _ in range(2):
        with pytest.raises(ShaderCompileError, match=rf"(?s)While executing %broken.*{line(around, 'broken(y)')}") as e:
            compiled(x)
        assert str(e.value).count("While executing") == 1


def test_a_kernel_of_the_backward_pass() -> None:
    w = torch.randn(4, device="webgpu", requires_grad=True)
    loss = torch.compile(lambda w: Broken.apply(w.exp()).sum())(w)
    assert loss.isfinite().item()
    with pytest.raises(ShaderCompileError, match=rf"(?s)While executing %broken.*{line(Broken.backward, 'broken(')}"):
        loss.backward()
    assert w.grad is None


def test_an_operation_that_cannot_be_lowered() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.webgpu_tests.not_lowered(x.sin()) + 1

    compiled = torch.compile(f)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"(?s)no kernel.*While executing %not_lowered.*{line(f, 'not_low')}"):
            compiled(torch.ones(3, device="webgpu"))


def test_a_plan_from_the_disk_names_the_line_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    x = torch.randn(4, device="webgpu")
    for _ in range(2):
        torch._dynamo.reset()
        with pytest.raises(ShaderCompileError, match=line(around, "broken(y)")):
            torch.compile(around)(x)
    assert len(list(tmp_path.glob("*.plan"))) == 1


def test_a_fused_kernel_names_all_its_lines() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        return y.exp()

    compiled, x = torch.compile(f), torch.ones(3, device="webgpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_graph.PlanFunction, "failing_step", lambda *_: 0)
        patch.setattr(compiled_graph.PlanFunction, "run", lambda *_: (_ for _ in ()).throw(RuntimeError("it failed")))
        with pytest.raises(RuntimeError, match=rf"(?s)%sin.*%mul.*{line(f, 'sin() * 2')}.*%exp.*{line(f, 'exp()')}"):
            compiled(x)


def large(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    w.add_(1)
    y = x @ w
    z = y.cumsum(0)
    return z.sum(0)


@pytest.mark.usefixtures("settled")
def test_out_of_memory() -> None:
    compiled = torch.compile(large, dynamic=True, fullgraph=True)
    x, w = torch.ones(1 << 13, 4, device="webgpu"), torch.zeros(4, 1 << 8, device="webgpu")
    with memory_limit(14 * MIB):
        with pytest.raises(OutOfMemoryError, match=rf"(?s)8.*MiB.*While executing %.*{line(large, 'y.cumsum')}"):
            compiled(x, w)
        assert w.sum().item() == 0  # as if it had not been called
        assert compiled(x[:64], w).tolist() == [64 * 65 / 2 * 4] * (1 << 8)
        assert w[0, 0].item() == 1


@pytest.fixture
def settled() -> None:
    """What earlier tests left under way is gone before bytes are counted."""
    torch.webgpu.synchronize()


@pytest.mark.usefixtures("settled")
def test_pooled_memory_of_other_sizes_is_given_back_before_memory_is_out() -> None:
    compiled, row = torch.compile(lambda x, row: x * row, dynamic=True), torch.ones(MIB // 4, device="webgpu")
    columns = [torch.full((size, 1), 2.0, device="webgpu") for size in (2, 3, 5, 9, 11)]
    torch.webgpu.synchronize()
    with memory_limit(24 * MIB):
        for x in columns:
            compiled(x, row)


def test_an_earlier_error_is_not_the_plans() -> None:
    compiled, x = torch.compile(lambda x: x + 1), torch.ones(3, device="webgpu")
    compiled(x)
    for given in (x, torch.ones(4, device="webgpu")):  # a plan that is there, and one to be made
        y = record_broken(x)
        with torch._dynamo.config.patch(suppress_errors=True), pytest.raises(ShaderCompileError) as e:
            compiled(given)
        assert "While executing" not in str(e.value)
        with pytest.raises(ShaderCompileError):
            compiled(y)
        assert compiled(given).sum().item() == 2 * given.numel()


def test_suppressed_errors_run_operator_by_operator() -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state.mul_(2)
        y = torch.nn.functional.dropout(x, 0.5) + state
        return torch.ops.webgpu_tests.broken_in_plans(y), state[1:], y

    compiled, x, base = torch.compile(f), torch.randn(8, device="webgpu"), torch.arange(12.0, device="webgpu")
    with torch._dynamo.config.patch(suppress_errors=True):
        for start in (0, 1, 4):  # also where the plan would be given a copy
            results = []
            for call in (f, compiled):
                torch.manual_seed(start)
                state = base.clone()
                results.append((call(x, state[start : start + 8]), state, torch.rand(3, device="webgpu")))
            assert_equal(results[1], results[0])
    with pytest.raises(ShaderCompileError, match="While executing %broken_in_plans"):
        compiled(x, base[:8])


def test_suppressed_errors_of_making_a_plan() -> None:
    calls = []

    def refuse(*args: Any) -> Any:
        calls.append(args)
        raise ValueError("no plan today")

    f = lambda x: x.relu() * 2
    x = torch.randn(5, device="webgpu")
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(suppress_errors=True):
        patch.setattr(compiled_graph, "trace", refuse)
        compiled = torch.compile(f)
        for _ in range(2):
            assert_equal(compiled(x), f(x))
    assert len(calls) == 1


@pytest.mark.skipif(torch.__version__ < "2.12", reason="AOTAutograd of PyTorch 2.11 drops linear algebra's checks")
def test_errors_between_plans_name_the_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.cholesky(x - 5)
        return y * 2

    compiled = torch.compile(f)
    with pytest.raises(torch.linalg.LinAlgError, match=rf"(?s)positive.*While executing %.*{line(f, 'cholesky')}"):
        compiled(torch.eye(3, device="webgpu"))
    eye = torch.eye(3, device="webgpu") * 9 + 5
    assert_equal(compiled(eye), f(eye))


def test_an_index_out_of_range_leaves_the_compiled_model_usable() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)).to("webgpu")
    compiled = torch.compile(model)
    good, bad = torch.tensor([0, 4], device="webgpu"), torch.tensor([0, 5], device="webgpu")
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(bad).cpu()
        assert_equal(compiled(good), model(good))


def test_unsupported_constructs_are_graph_breaks_with_a_reason() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break("because")
        return y + 1

    x = torch.ones(3, device="webgpu")
    with counting() as stats:
        assert torch.compile(f)(x).tolist() == [3, 3, 3]
    assert stats.graphs == 2
    explanation = torch._dynamo.explain(f)(x)
    assert explanation.graph_break_count == 1
    assert "because" in str(explanation.break_reasons[0].reason)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="because"):
        torch.compile(f, fullgraph=True)(x)
    assert torch.compile(lambda x: x * 2, fullgraph=True)(x).tolist() == [2, 2, 2]


def test_errors_of_pytorchs_shape_checks_are_pytorchs() -> None:
    compiled = torch.compile(lambda x, y: x @ y, fullgraph=True)
    with pytest.raises(RuntimeError, match=r"(?s)mat1 and mat2|size mismatch|must have same reduction dim"):
        compiled(torch.ones(2, 3, device="webgpu"), torch.ones(2, 3, device="webgpu"))
    assert compiled(torch.ones(2, 3, device="webgpu"), torch.ones(3, 2, device="webgpu")).tolist() == [[3, 3]] * 2
