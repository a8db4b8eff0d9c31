"""What the tests of captured graphs share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def goes_on(device: torch.device) -> Iterator[None]:
    """After every test: no capture is underway, nothing is poisoned, and the device computes."""
    kept = torch.arange(5.0, device=device) * 2
    yield
    assert not torch.webgpu.is_current_stream_capturing()
    torch.webgpu.synchronize()
    assert (kept @ torch.ones(5, device=device)).item() == 20


def captured(step: Callable[[], Any], **options: Any) -> tuple[torch.webgpu.Graph, Any]:
    """A graph of ``step``, and what it returned."""
    g = torch.webgpu.Graph()
    with torch.webgpu.graph(g, **options):
        result = step()
    return g, result


def in_use() -> int:
    """Bytes of buffers that somebody holds: tensors, graphs."""
    gc.collect()
    torch.webgpu.synchronize()
    return torch.webgpu.memory_stats()["active_bytes.all.current"]
