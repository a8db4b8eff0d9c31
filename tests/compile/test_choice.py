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
    assert call.__globals__["__name__"] == "torch_webgpu.compile.dynamo"


def test_importing_the_package_loads_no_compiler() -> None:
    program = (
        "import torch, torch_webgpu, sys; print([m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
