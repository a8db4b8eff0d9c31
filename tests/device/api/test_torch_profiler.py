"""torch.profiler shows the operators being recorded, the flushes, and in them our kernels' names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from torch_webgpu.engine.record import engine
from torch_webgpu.runtime.runtime import devices

webgpu = torch.webgpu


@pytest.fixture(autouse=True)
def no_clock() -> Iterator[None]:
    """On a busy machine the batch would end before the program has recorded it all."""
    with engine().using(delay_ms=0.0):
        yield


def program(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x * 2 + 1)
    return (y @ y).sum(0)


def profiled(x: torch.Tensor) -> tuple[profile, torch.Tensor]:
    webgpu.synchronize()
    with profile(activities=[ProfilerActivity.CPU]) as p:
        result = program(x)
        webgpu.flush_batch()
    return p, result


def test_operators_flushes_and_kernels_have_names() -> None:
    x = torch.eye(16, device="webgpu")
    expected = program(x).cpu()
    for _ in range(3):  # new, lowered before, and what would be a program's replay
        p, result = profiled(x)
        names = [event.name for event in p.events()]
        assert {"aten::mul", "aten::add", "aten::relu", "aten::mm", "aten::sum"} <= set(names)
        assert {"webgpu::flush", "webgpu::submit", "webgpu::mul+add+relu"} <= set(names)
        assert any(name.startswith("webgpu::mm") for name in names)
        assert any(name.startswith("webgpu::kernel matmul") for name in names)
        assert torch.equal(result.cpu(), expected)
    assert all(device.observer is None for device in devices())


def test_kernels_lie_in_their_flush() -> None:
    p, _ = profiled(torch.eye(16, device="webgpu"))
    by_name = {event.name: event for event in p.events()}
    flush, fused = by_name["webgpu::flush"].time_range, by_name["webgpu::mul+add+relu"].time_range
    recorded = by_name["aten::relu"].time_range
    assert flush.start <= fused.start <= fused.end <= flush.end
    assert recorded.end <= flush.start


def test_the_trace_has_them(tmp_path: Path) -> None:
    p, _ = profiled(torch.eye(16, device="webgpu"))
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert any(event.get("name") == "webgpu::mul+add+relu" for event in trace["traceEvents"])


def test_both_profilers_at_once() -> None:
    x = torch.eye(16, device="webgpu")
    with webgpu.profile() as ours:
        theirs, _ = profiled(x)
    assert any(event.operation == "mul+add+relu" for event in ours.events)
    assert "webgpu::mul+add+relu" in [event.name for event in theirs.events()]


def test_nothing_is_shown_to_nobody() -> None:
    p, _ = profiled(torch.eye(16, device="webgpu"))
    seen = len(p.events())
    program(torch.eye(16, device="webgpu")).cpu()
    assert len(p.events()) == seen
    assert all(device.observer is None for device in devices())
