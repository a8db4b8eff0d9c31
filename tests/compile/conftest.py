"""Every test starts with a compiler that has seen nothing, and the same random numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo

from torch_webgpu.compile import cache


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo without compiled code, with the configuration that it had before the test; no plans on disk."""
    monkeypatch.setattr(cache, "folder", lambda: None)
    torch._dynamo.reset()
    torch.manual_seed(0)
    logging.getLogger("torch.__trace").propagate = False  # pages of PyTorch's own with every failure
    before = torch._dynamo.config.save_config()
    yield
    torch._dynamo.config.load_config(before)
    torch._dynamo.reset()
