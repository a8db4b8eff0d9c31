"""What is fused stays within an adapter's limits, with what a kernel binds beside its tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime import pipelines

BUFFERS = 16


def test_a_split_reduction_with_many_outputs(device, monkeypatch) -> None:
    """Batch norm's gradients of large images leave partial sums between two kernels; what is filled joins the last."""
    opened = engine().device(0)
    monkeypatch.setitem(opened.limits, "max-storage-buffers-per-shader-stage", BUFFERS)
    monkeypatch.setattr(engine(), "_limits", {})
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
