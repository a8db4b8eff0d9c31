"""Which compiler a graph is given to, by backend, mode and device."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from .against_eager import assert_equal, check, counting


@pytest.mark.parametrize("options", [
    {}, {"backend": "webgpu"}, {"backend": "inductor"}, {"mode": "default"}, {"mode": "reduce-overhead"},
    {"mode": "max-autotune"}, {"mode": "max-autotune-no-cudagraphs"}, {"backend": "webgpu", "mode": "reduce-overhead"},
], ids=str)  # fmt: skip
def test_names(options: dict[str, Any]) -> None:
    with counting() as stats:
        check(lambda x: x @ x + 1, torch.randn(4, 4), fullgraph=True, **options)
    assert (stats.graphs, stats.plans, stats.runs) == (1, 1, 2)


def test_a_call_is_one_submission() -> None:
    compiled, x = torch.compile(lambda x: (x @ x).softmax(-1).sum(), fullgraph=True), torch.randn(8, 8, device="webgpu")
    compiled(x)
    with counting() as stats:
        for _ in range(5):
            compiled(x)
    assert (stats.graphs, stats.plans, stats.runs, stats.submissions, stats.between) == (0, 0, 5, 5, set())


def test_the_patched_wrapper_gives_inductor_what_is_not_on_webgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as compile_fx

    given = []

    def fake(model: Any, inputs: Any, **kwargs: Any) -> Any:
        given.append(model)
        return model.forward

    monkeypatch.setattr(compile_fx, "compile_fx", fake)
    x = torch.randn(4)
    assert_equal(torch.compile(lambda x: x * 2, backend="inductor")(x), x * 2)
    assert len(given) == 1
    assert_equal(torch.compile(lambda x: x * 3, backend="inductor")(x.to("webgpu")), x.to("webgpu") * 3)
    assert len(given) == 1


def test_the_wrapper_is_still_what_torch_compile_calls() -> None:
    call = torch._TorchCompileInductorWrapper.__call__
    assert call.__wrapped__.__module__ == "torch"
    assert call.__globals__["__name__"] == "torch_webgpu.compile.register"


def test_importing_the_package_loads_no_compiler() -> None:
    program = (
        "import torch, torch_webgpu, sys; print([m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 10), torch.nn.Sigmoid()
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("backend", [
    "eager", "eager_noexcept", "aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner",
    "invoke_subgraph", "pre_dispatch_eager", "cudagraphs", "inductor", "webgpu",
])  # fmt: skip
def test_backends_of_pytorch(backend: str) -> None:
    """As PyTorch's own tests of backends try them on each device."""
    torch._dynamo.reset()
    model, x = Inner().eval().to("webgpu"), torch.randn(2, 10, device="webgpu")
    assert_equal(torch.compile(model, backend=backend)(x), model(x), 1e-5)


def test_inductor_looked_up_by_name() -> None:
    """By backends around it: PyTorch's explains, and a program's own."""
    from torch._dynamo import lookup_backend
    from torch._dynamo.backends.debugging import ExplainWithBackend

    def inner(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.sin()

    torch._dynamo.reset()
    explaining = ExplainWithBackend("inductor")
    x = torch.randn(5, device="webgpu")
    assert_equal(torch.compile(lambda x: inner(x.cos()).cos(), backend=explaining)(x), x.cos().sin().sin().cos(), 1e-5)
    told = explaining.output()
    assert (told.graph_count, told.graph_break_count) == (4, 3)

    def mine(gm: Any, inputs: Any) -> Any:
        return lookup_backend("inductor")(gm, inputs)

    with counting() as stats:
        assert_equal(torch.compile(lambda x: x.exp() + 1, backend=mine)(x), x.exp() + 1, 1e-5)
    assert stats.plans == 1
