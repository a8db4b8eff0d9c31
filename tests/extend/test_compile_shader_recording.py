"""Kernels of a program's own are recorded as every operator is: in order, in batches, in plans, in compiled graphs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.conformance.target import DEVICE
from tests.device.processes import assert_ends_well

from torch_webgpu import plan
from torch_webgpu.engine.record import engine

from .test_compile_shader import SAXPY

pytestmark = pytest.mark.skipif(DEVICE.type != "webgpu", reason="kernels in WGSL run on the webgpu device")


@pytest.fixture(scope="module")
def lib() -> object:
    return torch.webgpu.compile_shader(SAXPY)


@pytest.fixture(scope="module")
def between(lib: object) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A function that uses the kernel between operators of PyTorch's."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y * 2
        lib.saxpy(x + 1, y, 0.5)  # type: ignore[attr-defined]
        return y.relu() - 1

    return function


def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y * 2 + 0.5 * (x + 1)).relu() - 1


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(100, device=DEVICE), torch.randn(100, device=DEVICE)


def test_batched_and_in_order(lib: object, between: Callable[..., torch.Tensor]) -> None:
    x, y = inputs()
    torch.webgpu.synchronize()
    result = between(x, y)
    assert torch.webgpu.get_pending_count() == 5
    torch.testing.assert_close(result, expected(x, y))


def test_calls_with_other_numbers_and_sizes_share_one_pipeline(lib: object) -> None:
    x, y = inputs()
    lib.saxpy(x, y, 0.25)  # type: ignore[attr-defined]
    torch.webgpu.synchronize()
    pipelines = engine().device(DEVICE.index or 0).opened.pipelines
    count = pipelines.pipeline_count
    for n in (3, 50, 99):
        lib.saxpy(x[:n], y[1 : n + 1], n / 7)  # type: ignore[attr-defined]
        torch.webgpu.compile_shader(SAXPY).saxpy(x[1:], y[1:], 2, threads=n)
    torch.webgpu.synchronize()
    assert pipelines.pipeline_count == count


def test_profile_and_explain_name_it(between: Callable[..., torch.Tensor]) -> None:
    x, y = inputs()
    with torch.webgpu.profile() as profile:
        between(x, y)
    assert "saxpy" in profile.table()
    assert "saxpy(f32[100], f32[100]) → f32[100]" in str(torch.webgpu.explain(between, x, y))


def test_in_a_captured_graph(between: Callable[..., torch.Tensor]) -> None:
    x, y = inputs()
    between(x, y)
    still_x, still_y = torch.zeros_like(x), torch.zeros_like(y)
    graph = torch.webgpu.Graph()
    with torch.webgpu.graph(graph):
        result = between(still_x, still_y)
    for _ in range(2):
        x, y = inputs()
        still_x.copy_(x)
        still_y.copy_(y)
        graph.replay()
        torch.testing.assert_close(result, expected(x, y))


def test_in_plans_that_are_saved_and_loaded(between: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    x, y = inputs()
    traced = plan.trace(between, x, y)
    traced.save(tmp_path / "plan")
    loaded = plan.Plan.load(tmp_path / "plan")
    (kernel,) = [k for k in loaded.kernels if k.name == "saxpy"]
    assert not kernel.trusted
    for one in (traced, loaded):
        torch.testing.assert_close(plan.bind(one)(x, y), expected(x, y))
    assert plan.Plan.from_json(loaded.to_json()) == loaded


def test_in_a_plan_for_a_gpu_that_is_not_here(between: Callable[..., torch.Tensor]) -> None:
    traced = plan.trace(between, torch.empty(100, device="meta"), torch.empty(100, device="meta"), target="browser")
    assert "saxpy" in [kernel.name for kernel in traced.kernels]


def test_a_compiled_function_breaks_its_graph_there(between: Callable[..., torch.Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(between)
    for _ in range(2):
        x, y = inputs()
        torch.testing.assert_close(compiled(x, y), expected(x, y))


def test_in_a_custom_operator_it_is_part_of_compiled_graphs(lib: object) -> None:
    @torch.library.custom_op("compile_shader_tests::saxpy_", mutates_args=("y",))
    def saxpy_(x: torch.Tensor, y: torch.Tensor, alpha: float) -> None:
        lib.saxpy(x, y, alpha)  # type: ignore[attr-defined]

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y * 2
        saxpy_(x + 1, y, 0.5)
        return y.relu() - 1

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True)
    for _ in range(2):
        x, y = inputs()
        torch.testing.assert_close(compiled(x, y), expected(x, y))


def test_autograd_sees_that_a_tensor_was_written(lib: object) -> None:
    """No gradient flows through a kernel, as with MPS's; but none that is silently wrong comes of it."""
    x, w = torch.ones(10, device=DEVICE), torch.ones(10, device=DEVICE, requires_grad=True)
    saved = w.exp()
    version = saved._version
    lib.saxpy(x, saved, 1.0)  # type: ignore[attr-defined]
    assert saved._version == version + 1
    assert x._version == 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    out = torch.zeros(10, device=DEVICE)
    lib.saxpy(w, out, 1.0)  # type: ignore[attr-defined]
    assert not out.requires_grad
    assert out.tolist() == [1.0] * 10


def test_libraries_can_be_pickled(lib: object) -> None:
    x, y = inputs()
    want = y + x
    pickle.loads(pickle.dumps(lib)).saxpy(x, y, 1.0)
    pickle.loads(pickle.dumps(lib.saxpy))(x, want, -1.0)  # type: ignore[attr-defined]
    torch.testing.assert_close(y - x, want)


def python_calls(call: Callable[[], object]) -> int:
    """How many Python functions a call runs that was seen before, and in which no batch begins or ends."""
    counts = []
    for _ in range(12):
        count = 0

        def look(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(look)
        try:
            call()
        finally:
            sys.setprofile(None)
        counts.append(count - 1)
    return min(counts)


def test_a_call_costs_no_more_than_half_again_a_built_in_operators(lib: object) -> None:
    # No other test has this shape: the guards of earlier calls would be asked first.
    x, y = torch.ones(5, 23, device=DEVICE), torch.ones(5, 23, device=DEVICE)
    built_in = python_calls(lambda: y.add_(x, alpha=0.5))
    own = python_calls(lambda: lib.saxpy(x, y, 0.5))  # type: ignore[attr-defined]
    assert own <= 1.5 * built_in, (own, built_in)


def test_plans_are_the_same_in_every_process(lib: object) -> None:
    """Whose sets are in another order: kernels are found again by their text, on disk and in caches."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        lib.saxpy(x.t(), y.view(-1), 2.0)  # type: ignore[attr-defined]
        return y

    script = f"""
lib = torch.webgpu.compile_shader('''{SAXPY}''')
def function(x, y):
    lib.saxpy(x.t(), y.view(-1), 2.0)
    return y
x = torch.ones(3, 4, device="webgpu")
print(torch_webgpu.plan.trace(function, x, x.clone()).to_json())
"""
    x = torch.ones(3, 4, device=DEVICE)
    there = assert_ends_well(script, PYTHONHASHSEED="1").strip()
    assert there == plan.trace(function, x, x.clone()).to_json()


def test_nothing_is_compiled_before_the_device_is_used() -> None:
    script = f"""
from torch_webgpu.engine.record import started_in
lib = torch.webgpu.compile_shader('''{SAXPY.replace("+= alpha", "+= beta + alpha")}''')
assert started_in() is None
with pytest.raises(torch.webgpu.ShaderCompileError) as caught:
    lib.saxpy(torch.ones(3, device="webgpu"), torch.ones(3, device="webgpu"), 1.0)
assert "line 8, column 16" in str(caught.value), caught.value
print((torch.ones(2, device="webgpu") * 2).tolist())
"""
    assert assert_ends_well(script) == "[2.0, 2.0]\n"
