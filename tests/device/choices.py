"""For tests that change how kernels are chosen: what was chosen before is forgotten."""

from __future__ import annotations

from weakref import WeakValueDictionary

import pytest

from torch_webgpu.aten.dispatch import recipes
from torch_webgpu.caches import Cache
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Operation


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations are lowered anew, in this test and after it; equal ones are one object for as long as it is known."""
    monkeypatch.setattr(Operation, "_interned", WeakValueDictionary())  # whoever still holds one
    monkeypatch.setattr(engine(), "operations", Cache("operations of a test", 1000))
    engine().plans.clear()
    recipes.clear()
