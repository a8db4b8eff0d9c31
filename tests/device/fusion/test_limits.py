"""What is fused stays within an adapter's limits, with what a kernel binds beside its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.device.choices import forget

from torch_webgpu.aten.attention import sdpa
from torch_webgpu.aten.attention.attention_products import Dropout, kept
from torch_webgpu.engine.plan_cache import PlanCache
from torch_webgpu.engine.record import engine
from torch_webgpu.runtime import pipelines

BUFFERS = 16
FEWEST = 8
"""As many as every WebGPU adapter binds."""


def limit(monkeypatch: pytest.MonkeyPatch, buffers: int) -> None:
    """What is planned from now on binds no more."""
    device = engine().device(0)
    assert device.opened  # with all that it has, for the tests that follow
    monkeypatch.setattr(device, "target", replace(device.target, max_buffers=buffers))
    monkeypatch.setattr(engine(), "plans", PlanCache())


def test_a_split_reduction_with_many_outputs(device, monkeypatch) -> None:
    """Batch norm's gradients of large images leave partial sums between two kernels; what is filled joins the last."""
    if engine().device(0).target.max_buffers < BUFFERS:
        pytest.skip("the adapter binds fewer")
    limit(monkeypatch, BUFFERS)
    bound: list[int] = []
    link = pipelines.link

    def noted(kernel: Any, *args: Any) -> Any:
        bound.append(len(kernel.bindings))
        return link(kernel, *args)

    monkeypatch.setattr(pipelines, "link", noted)
    x = torch.randn(16, 24, 48, 48, device=device, requires_grad=True)
    w, b = (torch.randn(24, device=device, requires_grad=True) for _ in range(2))
    y = F.relu(F.batch_norm(x, None, None, w, b, True))
    grad = torch.randn_like(y)
    torch.webgpu.synchronize()
    bound.clear()
    y.backward(grad)
    filled = [torch.zeros(24, device=device) for _ in range(14)]
    torch.webgpu.synchronize()
    assert BUFFERS - 2 <= max(bound) <= BUFFERS
    assert not any(t.any() for t in filled)
    copies = [t.detach().cpu().requires_grad_() for t in (x, w, b)]
    F.relu(F.batch_norm(copies[0], None, None, *copies[1:], True)).backward(grad.cpu())
    for found, wanted in zip((x, w, b), copies, strict=True):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-3)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The device binds the fewest buffers. How many each kernel binds that is made."""
    limit(monkeypatch, FEWEST)
    forget(monkeypatch)
    found: list[int] = []
    link = pipelines.link

    def noted(kernel: Any, *args: Any) -> Any:
        found.append(len(kernel.bindings))
        return link(kernel, *args)

    monkeypatch.setattr(pipelines, "link", noted)
    return found


def test_batch_norm_over_the_fewest_buffers(device, bound) -> None:
    """Its training binds eight tensors, which leaves none for the sums of rows that are split."""
    here = [torch.randn(16, 6, 48, 48), *(torch.randn(6) for _ in range(3)), torch.rand(6)]
    results = []
    for on in ("cpu", device):
        x, w, b, mean, var = (t.detach().to(on).clone() for t in here)
        leaves = [t.requires_grad_() for t in (x, w, b)]
        y = F.relu(F.batch_norm(x, mean, var, w, b, training=True))
        results.append([y, mean, var, *torch.autograd.grad((y * y).sum(), leaves)])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)
    assert max(bound) == FEWEST


def test_attention_over_the_fewest_buffers(device, bound) -> None:
    """Its backward with a mask and dropout, of which each alone would do."""
    q, k, v = (torch.randn(2, 2, 20, 8, device=device, requires_grad=True) for _ in range(3))
    mask = torch.randn(20, 20, device=device)
    y, *_, seed, offset, _ = sdpa.FUSED(q, k, v, mask, 0.3)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, (q, k, v), grad)
    keep = kept(Dropout(0.3, seed, offset), q, k).cpu()
    here = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
    weights = (here[0] @ here[1].mT / 8**0.5 + mask.cpu()).softmax(-1) * keep / 0.7
    for got, wanted in zip(found, torch.autograd.grad(weights @ here[2], here, grad.cpu()), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
    assert max(bound) <= FEWEST
