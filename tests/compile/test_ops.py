"""Operators of PyTorch's database (OpInfo), compiled against eager: results, views, what is written, gradients.

Eager is held against the CPU by ``tests/conformance``. The quick run takes the first sample of every ``EVERY``-th
operator, ``TORCH_WEBGPU_CONFORMANCE=full`` more samples of them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.conformance import checks, samples
from tests.conformance.compare import MismatchError, assert_same
from tests.conformance.target import DEVICE
from tests.conformance.trials import Trial, attempt, opinfos, supports
from torch.utils import _pytree as pytree

FULL = os.environ.get("TORCH_WEBGPU_CONFORMANCE", "quick") == "full"
EVERY = 1 if FULL else 20
SAMPLES = 3 if FULL else 1
CALLS = 2
"""The second one finds the plan that the first one made."""

TRIALS = [
    Trial(name, kind, "float32")
    for name in list(opinfos())[::EVERY]
    for kind in ("forward", "backward")
    if supports(opinfos()[name], kind, torch.float32)
]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(lambda *args, **kwargs: function(*args, **kwargs), dynamic=False)


def gradients(function: Callable[..., Any], sample: samples.Sample) -> Callable[..., Any]:
    """The function's gradients for cotangents of ones."""

    def run(input: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
        inputs = [t for t in pytree.tree_leaves((input, args, kwargs)) if is_differentiable(t)]
        result = sample.process_output(function(input, *args, **kwargs))
        outputs = [t for t in pytree.tree_leaves(result) if is_differentiable(t)]
        if not (inputs and outputs):
            return []
        return list(torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs], allow_unused=True))

    return run


def is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def check(case: checks.Case, sample: samples.Sample, kind: str) -> None:
    """Compiled code gives what the operator gives, call after call, from equal random numbers."""
    function = case.op.op
    runs = function, compiled(function)
    if kind == "backward":
        runs = gradients(runs[0], sample), gradients(runs[1], sample)
    eager = checks.Call(runs[0], sample, DEVICE)
    expected = eager.outcome()
    for _ in range(CALLS):
        call = checks.Call(runs[1], sample, DEVICE)
        actual = call.outcome()
        if not checks.same_outcome(actual, expected, exact_error=False):
            continue
        values = case.op.name not in checks.UNINITIALISED
        assert_same(actual.value, expected.value, case.tolerances, values=values, strides=kind == "forward")
        if kind == "forward":
            views = [places(c, value) for c, value in ((call, actual.value), (eager, expected.value))]
            if views[0] != views[1]:
                raise MismatchError(f"results lie in the storages of inputs {views[0]}, eagerly in {views[1]}")
        for a, e in zip(call.replica.storages, eager.replica.storages, strict=True):
            assert_same(a, e, case.tolerances)


def places(call: checks.Call, value: Any) -> list[int | None]:
    return [call.replica.index_of(t) for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def labelled(trial: Trial) -> Iterator[tuple[str, Callable[[], None]]]:
    case = checks.Case.of(opinfos()[trial.op], torch.float32)
    for sample in samples.choose(case.op, case.dtype, SAMPLES, requires_grad=trial.kind == "backward"):
        yield sample.describe(), lambda sample=sample: check(case, sample, trial.kind)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: f"{trial.op}-{trial.kind}")
def test_operator(trial: Trial) -> None:
    result = attempt(trial, labelled(trial))
    assert result.samples > 0
    assert result.failures == []
