"""The plans of what is compiled, for tests that count their dispatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from torch_webgpu.compile import backend, compiled_graph
from torch_webgpu.plan import Plan


@contextmanager
def plans() -> Iterator[list[Plan]]:
    """The plans that compiled functions run in the block for the first time, in order."""
    found: list[Plan] = []
    bound_plan: Any = compiled_graph.PlanFunction

    def noting(engine: Any, plan: Plan, *args: Any) -> Any:
        found.append(plan)
        return bound_plan(engine, plan, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_graph, "PlanFunction", noting)
        yield found


def with_and_without_patterns(run: Callable[[], Any]) -> Iterator[tuple[Any, list[Plan]]]:
    """What ``run`` returns and the plans that it makes, compiled anew with patterns, then without."""
    for applies in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not applies:
                patch.setattr(backend.graph_patterns, "apply", lambda gm: {})
            torch._dynamo.reset()
            with plans() as made:
                result = run()
        yield result, made


def dispatches(made: list[Plan]) -> int:
    """Of all the plans together."""
    return sum(len(plan.steps) for plan in made)
