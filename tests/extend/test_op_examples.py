"""The examples of programs' own operators compute what their compositions do, and are whole operators."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.device.against_cpu import check

from torch_webgpu import plan
from torch_webgpu.extend.op import registered

FOLDER = Path(__file__).parents[2] / "examples" / "custom_ops"
EXAMPLES: dict[str, Any] = {e.name: e for e in runpy.run_path(str(FOLDER / "compare.py"))["examples"]()}
DIFFERENTIABLE = ("rope", "swiglu", "rms_norm", "stencil")
IN_SEVERAL_DISPATCHES = ("rope",)  # which joins its halves


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_computes_what_its_composition_does(device: torch.device, name: str) -> None:
    example = EXAMPLES[name]
    args = example.inputs()
    for dev in ("cpu", device):
        result = example.ours(*[t.to(dev) for t in args])
        torch.testing.assert_close(result.cpu(), example.composed(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_its_gradients_are_those_of_its_composition(device: torch.device, name: str) -> None:
    example = EXAMPLES[name]
    check(device, example.ours, *example.inputs(), backward=True, tol=2e-4)
    args = [t.requires_grad_() for t in example.inputs()]
    for own, reference in zip(
        torch.autograd.grad(example.ours(*args).square().sum(), args),
        torch.autograd.grad(example.composed(*args).square().sum(), args),
        strict=True,
    ):
        torch.testing.assert_close(own, reference, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_compiled_and_traced_whole(device: torch.device, name: str) -> None:
    example = EXAMPLES[name]
    args = [t.to(device) for t in example.inputs()]
    traced = plan.trace(example.ours, *args, target="browser")
    kernels = [step for step in traced.steps if hasattr(step, "kernel")]
    assert (len(kernels) > 1) == (name in IN_SEVERAL_DISPATCHES)
    before = dict(torch.webgpu.compile_stats().between)
    compiled = torch.compile(example.ours, backend="webgpu", fullgraph=True)
    torch.testing.assert_close(compiled(*args), example.ours(*args), rtol=1e-4, atol=1e-4)
    assert torch.webgpu.compile_stats().between == before


CALLS = {
    "examples::laplacian": lambda *t: (t[0], [t[0].shape[1], t[0].shape[0]]),
    "examples::segmented_scan": lambda *t: (*t, t[0].shape[1]),
    "examples::top_k_sample": lambda *t: (*t, t[0].shape[1], 5),
    "examples::linear_attention": lambda *t: (*t, t[0].shape[-2]),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_passes(device: torch.device, name: str) -> None:
    definition = registered()[name]
    by_name = {"examples::laplacian": "stencil", "examples::top_k_sample": "top_k_sampling"}
    example = EXAMPLES[by_name.get(name, name.split("::")[1])]
    args = CALLS[name](*[t.to(device) for t in example.inputs()])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(definition.overload, args, test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}
    assert definition.kind == "kernel"
