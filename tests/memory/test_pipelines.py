"""Compiled kernels take memory too: over 3 MB each on lavapipe."""

from __future__ import annotations

import pytest
import torch

from torch_webgpu.engine.record import engine


def test_compiled_kernels_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(0.1, 0.9, 64)
    on_device = x.to("webgpu")
    pipelines = engine().device(0).opened.pipelines
    monkeypatch.setattr(pipelines._pipelines, "limit", 4)
    with engine().lock:  # what is left of another test may be submitted meanwhile
        pipelines._pipelines.evict()  # what other tests compiled
    functions = (torch.exp, torch.sin, torch.sqrt, torch.tanh, torch.log, torch.floor, torch.ceil, torch.neg)
    for fn in (*functions, *functions):
        torch.testing.assert_close(fn(on_device).cpu(), fn(x))
        assert pipelines.pipeline_count <= 4
