"""The plans of what is compiled, for tests that count their dispatches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from torch_webgpu.compile import graph
from torch_webgpu.plan import Plan


@contextmanager
def plans() -> Iterator[list[Plan]]:
    """The plans that compiled functions run in the block for the first time, in order."""
    found: list[Plan] = []
    bound_plan: Any = graph.BoundPlan

    def noting(engine: Any, plan: Plan, *args: Any) -> Any:
        found.append(plan)
        return bound_plan(engine, plan, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "BoundPlan", noting)
        yield found
