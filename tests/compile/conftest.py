"""Every test starts with a compiler that has seen nothing, and the same random numbers."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch.fx import GraphModule

from torch_webgpu.compile import autograd_cache, cache, memory_formats
from torch_webgpu.compile.counts import COUNTS

os.environ["HF_HUB_OFFLINE"] = "1"  # models are made of configurations; nothing is to be downloaded


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo without compiled code, with the configuration that it had before the test; no plans on disk."""
    for module in (cache, autograd_cache):
        monkeypatch.setattr(module, "folder", lambda: None)
    torch._dynamo.reset()
    torch.manual_seed(0)
    logging.getLogger("torch.__trace").propagate = False  # pages of PyTorch's own with every failure
    before = torch._dynamo.config.save_config()
    yield
    torch._dynamo.config.load_config(before)
    torch._dynamo.reset()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each pattern was found in what is compiled from now on."""
    monkeypatch.setattr(COUNTS, "patterns", Counter())
    return COUNTS.patterns


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """The graphs whose layouts are chosen."""
    found: list[GraphModule] = []
    apply = memory_formats.apply

    def noted(gm: GraphModule) -> GraphModule:
        found.append(apply(gm))
        return found[-1]

    monkeypatch.setattr(memory_formats, "apply", noted)
    return found
