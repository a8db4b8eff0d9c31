"""Every test starts with a compiler that has seen nothing, and the same random numbers."""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.fx import GraphModule

from torch_webgpu.compile import autograd_cache, cache, memory_formats, summed_parts
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
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of names that it has saved itself
        torch._dynamo.config.load_config(before)
    torch._dynamo.reset()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each pattern was found in what is compiled from now on."""
    monkeypatch.setattr(COUNTS, "patterns", Counter())
    return COUNTS.patterns


def results_of(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[Any]:
    """What the pass ``module`` returns from now on, for each graph."""
    results: list[Any] = []
    apply = module.apply

    def noted(gm: GraphModule) -> Any:
        results.append(apply(gm))
        return results[-1]

    monkeypatch.setattr(module, "apply", noted)
    return results


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """The graphs whose layouts are chosen."""
    return results_of(monkeypatch, memory_formats)


@pytest.fixture
def rewritten_sums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sums of parts were rewritten in each joint graph."""
    return results_of(monkeypatch, summed_parts)
