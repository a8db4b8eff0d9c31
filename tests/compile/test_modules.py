"""Modules of PyTorch's database (ModuleInfo), compiled against eager: results, gradients, what they keep.

Eager is held against the CPU by ``tests/conformance``. The usual run takes the first input of every ``EVERY``-th
module, ``--full`` more inputs of them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.conformance.compare import assert_same, tolerance_of
from tests.conformance.modules import INFOS, Step, steps
from tests.conformance.target import DEVICE
from tests.conformance.trials import Trial, attempt

EVERY = 12
INPUTS = 4
"""Of each module and mode, in the long version."""
CALLS = 2
"""The second one finds the plan that the first one made."""

NAMES = [
    pytest.param(name, marks=() if n % EVERY == 0 else pytest.mark.slow)
    for n, (name, info) in enumerate(INFOS.items())
    if torch.float32 in info.dtypes
]


def check(step: Step) -> None:
    """Compiled code gives what the module gives, call after call, from equal random numbers."""
    torch._dynamo.reset()
    compiled = replace(step, wrap=partial(torch.compile, dynamic=False))
    expected = step(DEVICE)
    for _ in range(CALLS):
        actual = compiled(DEVICE)
        for part in expected:
            tolerances = tolerance_of(step.info, step.dtype)
            assert_same(actual[part], expected[part], tolerances, strides=part == "output")


def labelled(name: str, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    for label, step in steps(name, torch.float32, count):
        yield label, partial(check, step)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_module(name: str, request: pytest.FixtureRequest) -> None:
    count = INPUTS if request.config.getoption("full") else 1
    with torch._dynamo.config.patch(allow_rnn=True, recompile_limit=64):
        result = attempt(Trial(name, "module", "float32"), labelled(name, count))
    assert result.samples > 0
    assert result.failures == []
