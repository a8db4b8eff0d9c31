"""Compiled code over a session: tools of the compiler's, many graphs, large ones, threads, a second device."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch
import torch.nn as nn
from tests.device.processes import assert_ends_well
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from torch_webgpu.aten.dispatch.torch_abi import compiling

from .against_eager import assert_equal, counting

DEVICE = "webgpu"


def test_explain_says_what_was_captured() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break("here")
        return y.cos() * 2

    x = torch.randn(4, device=DEVICE)
    found = torch._dynamo.explain(f)(x)
    assert (found.graph_count, found.graph_break_count) == (2, 1)
    assert_equal(torch.compile(f)(x), f(x))


def test_what_kernels_call_is_not_traced_after_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what the libraries below call: Dynamo looks at every frame of a function that it cannot compile."""
    traced, compile_frame = set(), torch._dynamo.convert_frame.compile_frame

    def noted(code: Any, *args: Any, **kwargs: Any) -> Any:
        traced.add(code.co_filename)
        return compile_frame(code, *args, **kwargs)

    monkeypatch.setattr(torch._dynamo.convert_frame, "compile_frame", noted)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(2):  # a break in a loop leaves the function as it is
            torch._dynamo.graph_break()
            x = x + torch.tensor([1.0, 2.0]).to(DEVICE).sum() + y.to(DEVICE).sum() + x.sum().item()
        return x

    x, y = torch.randn(4, device=DEVICE), torch.randn(40)
    assert_equal(torch.compile(f)(x, y), f(x, y))
    assert traced == {__file__}


def test_what_is_disabled_runs_eagerly_between_graphs() -> None:
    seen = []

    @torch.compiler.disable
    def apart(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return x * 3

    f = lambda x: apart(x + 1) - 1
    x = torch.randn(4, device=DEVICE)
    compiled = torch.compile(f)
    with counting() as stats:
        for _ in range(3):
            assert_equal(compiled(x), f(x))
    assert (stats.graphs, stats.runs) == (2, 6)
    assert set(seen) == {False}


def test_a_reset_compiles_anew_and_gives_memory_back() -> None:
    weight = torch.randn(4, 4, device=DEVICE)
    compiled, x = torch.compile(lambda x: x @ weight + torch.ones(4, 4, device=DEVICE)), torch.randn(4, device=DEVICE)
    expected = compiled(x)
    with counting() as stats:
        torch.compiler.reset()
        assert_equal(compiled(x), expected)
    assert stats.graphs == 1


def test_no_memory_grows_with_calls_or_with_graphs_that_are_dropped() -> None:
    def bytes_after(n: int) -> int:
        for _ in range(n):
            torch._dynamo.reset()
            compiled = torch.compile(lambda x: (x @ x).softmax(-1) + torch.arange(4.0, device=DEVICE))
            for _ in range(3):
                compiled(torch.ones(4, 4, device=DEVICE))
            del compiled
        torch._dynamo.reset()
        gc.collect()
        torch.webgpu.synchronize()
        return torch.webgpu.memory_allocated()

    first = bytes_after(2)
    assert bytes_after(4) == first


@pytest.mark.skipif(
    torch.__version__ < "2.12", reason="Dynamo of PyTorch 2.11 takes functions that differ in defaults for one"
)
def test_several_graphs_are_alive_at_once() -> None:
    x = torch.randn(6, device=DEVICE)
    functions = [lambda t, n=n: (t * n).sin() + n for n in range(12)]
    compiled = [torch.compile(lambda t, f=f: f(t), dynamic=False) for f in functions]
    with torch._dynamo.config.patch(recompile_limit=16):
        results = [call(x) for call in compiled]
        assert_equal([call(x) for call in compiled], results)
    assert_equal(results, [f(x) for f in functions])


def test_forward_passes_before_their_backward_passes() -> None:
    """Activations of several calls of one graph are alive at once."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(DEVICE)
    compiled, xs = torch.compile(model), [torch.randn(3, 4, device=DEVICE) for _ in range(3)]
    gradients = []
    for call in (model, compiled):
        losses = [call(x).square().sum() for x in xs]
        found = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in reversed(losses)]
        gradients.append([found, torch.autograd.grad(losses[0], list(model.parameters()))])
    assert_equal(gradients[1], gradients[0], 1e-5)


@pytest.mark.slow
def test_a_graph_of_three_thousand_operators() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for n in range(1000):
            x = (x * 0.99 + y).relu() if n % 3 else (x - y).cos()
        return x

    x, y = torch.randn(8, device=DEVICE), torch.randn(8, device=DEVICE)
    compiled = torch.compile(f, fullgraph=True)
    with counting() as stats:
        actual = compiled(x, y), compiled(y, x)
    assert (stats.graphs, stats.plans, stats.runs) == (1, 1, 2)
    assert_equal(actual, (f(x, y), f(y, x)), 1e-5)


def test_a_sweep_of_batches_and_lengths_makes_no_more_plans_than_there_are_shapes() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0, device=DEVICE)
    compiled = torch.compile(layer, dynamic=True)
    shapes = [(batch, length) for batch in (2, 3) for length in (4, 7, 9)]
    with counting() as stats:
        for _ in range(2):
            for batch, length in shapes:
                x = torch.randn(batch, length, 16, device=DEVICE)
                assert_equal(compiled(x), layer(x), 1e-5)
    assert stats.graphs <= 4
    assert stats.plans <= len(shapes) + 2  # nothing runs backward; the first graphs may be of one shape


def test_marked_dimensions_that_may_not_vary_are_errors_of_pytorchs() -> None:
    compiled = torch.compile(lambda x: x + torch.ones(4, device=DEVICE))
    x = torch.randn(4, device=DEVICE)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolationError, match="specialized"):
        compiled(x)
    y = torch.randn(4, device=DEVICE)
    torch._dynamo.mark_static(y, 0)
    assert_equal(compiled(y), y + 1)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 takes a thread that traces for all threads")
def test_threads_with_graphs_of_their_own_and_one_in_common() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)).to(DEVICE)
    common = torch.compile(model)
    xs = [torch.randn(n + 2, 6, device=DEVICE) for n in range(4)]
    expected = [(model(x), (x * n).exp().sum(0)) for n, x in enumerate(xs)]
    common(xs[0])

    def work(n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        own = torch.compile(lambda x: (x * n).exp().sum(0), dynamic=False)
        return [(common(xs[n]), own(xs[n])) for _ in range(6)]

    with ThreadPoolExecutor(4) as pool:
        for n, results in enumerate(pool.map(work, range(4))):
            assert_equal(results, [expected[n]] * 6, 1e-5)


@pytest.mark.slow
def test_logs_say_what_is_compiled() -> None:
    program = """
import torch
torch.compile(lambda x: x.sin() + 1)(torch.ones(3, device="webgpu")).cpu()
"""
    environment = {**os.environ, "TORCH_LOGS": "graph_code,aot_graphs,recompiles"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "TRACED GRAPH" in done.stderr
    assert "torch.ops.aten.sin.default" in done.stderr


SECOND = """
import torch
from torch import nn
assert torch.webgpu.device_count() >= 2
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
expected = None
for device in ("cpu", "webgpu:1", "webgpu:0"):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    model.load_state_dict(plain.state_dict())
    run = model if device == "cpu" else torch.compile(model, fullgraph=True)
    results = []
    for _ in range(2):
        y = run(torch.linspace(-1, 1, 12, device=device).view(3, 4))
        assert y.device == torch.device(device)
        results += [y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))]
    results = [t.detach().cpu() for t in results]
    expected = expected or results
    torch.testing.assert_close(results, expected)
made = torch.compile(lambda: torch.arange(3.0, device="webgpu:1") * 2, fullgraph=True)()
assert (made.device.index, made.tolist()) == (1, [0, 2, 4])
both = torch.compile(lambda a, b: (a * 2, b * 3, a.to(b.device) + b))
a, b = torch.ones(3, device="webgpu:0"), torch.ones(3, device="webgpu:1")
found = both(a, b)
assert [(t.device.index, t.sum().item()) for t in found] == [(0, 6), (1, 9), (1, 6)], found
"""


def test_a_second_device() -> None:
    environment = {**os.environ, "TORCH_WEBGPU_COPIES": "2"}  # one adapter opened twice does as two
    done = subprocess.run([sys.executable, "-c", SECOND], env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_threads_that_trace_and_compile_put_the_flag_of_compiling_back() -> None:
    """Whichever begins or ends first: libraries would otherwise think for ever that they are being compiled."""
    tracing, compiles, traced = Event(), Event(), Event()

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiles.set()
        traced.wait(1)
        return graph

    def trace() -> None:
        with compiling():
            tracing.set()
            compiles.wait(0.5)
        traced.set()

    def compile_one() -> None:
        tracing.wait(1)
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))

    torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))  # so that the compiler is loaded
    with ThreadPoolExecutor(2) as pool:
        for thread in [pool.submit(trace), pool.submit(compile_one)]:
            thread.result()
    assert not torch.compiler.is_compiling()


def test_functions_replaced_for_another_adapter_are_part_of_graphs() -> None:
    """Dynamo knows functions by what they were when it began."""
    script = """
import torch, torch_webgpu
from torch_webgpu import plan
compiled = torch.compile(lambda x: x * torch.tensor(2.0), fullgraph=True)
x = torch.ones(3, device="webgpu")
print(compiled(x).tolist())
plan.trace(lambda t: t + 1, torch.empty(4, device="meta"), target="browser")
torch._dynamo.reset()
print(compiled(x).tolist())
"""
    assert assert_ends_well(script) == "[2.0, 2.0, 2.0]\n" * 2
