"""Kernels that number few elements, or so it seems: what happens beyond 2³² elements, with tensors that fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.conformance.target import DEVICE

from torch_webgpu import layout
from torch_webgpu.engine import record, recorded_lists


@contextmanager
def few_numbers(limit: int) -> Iterator[None]:
    torch.zeros(1, device=DEVICE).cpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "MAX_INDEX", limit)
        patch.setattr(recorded_lists, "MAX_INDEX", limit)
        record.engine().on_huge()
        yield
        torch.webgpu.synchronize()
        vars(record.engine()).pop("append", None)
