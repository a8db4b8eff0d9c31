"""What the tests of this folder share: how a result is reported, and how expected failures are marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch.testing._internal import common_utils

from .expected_failures import may_fall_back, reason
from .report import PROPERTY
from .target import DEVICE
from .trials import Result, Trial


@pytest.fixture(autouse=True)
def no_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps PyTorch from walking the stack for every sample and every seed, which took half of the time.

    Its samples look for the ``unittest`` that asks for them, and there is none. ``torch.manual_seed`` keeps where it
    was called for each kind of device, in case that is used later, and the machine has none.
    """
    monkeypatch.setattr(common_utils, "extract_test_fn", lambda: None)
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            monkeypatch.setattr(kind, "_lazy_call", lambda *args, **kwargs: None, raising=False)


def parameters(trials: Iterable[Trial]) -> list[object]:
    """The trials as parameters; listed ones must fail (strictly: one that passes is a failure)."""

    def marks(trial: Trial) -> list[pytest.MarkDecorator]:
        why = reason(trial) if DEVICE.type == "webgpu" else None
        return [pytest.mark.xfail(reason=why, strict=True, raises=pytest.fail.Exception)] if why else []

    return [pytest.param(trial, id=str(trial), marks=marks(trial)) for trial in trials]


def _not_native(result: Result) -> list[str]:
    if not result.trial.is_seed or DEVICE.type != "webgpu":
        return []
    expected = may_fall_back(result.trial)
    if expected and not result.fallbacks:
        return ["it runs natively now: take it off EXPECTED_FALLBACKS"]
    return [f"not native: fell back to the CPU for {result.fallbacks}"] if result.fallbacks and not expected else []


@pytest.fixture
def settle(request: pytest.FixtureRequest) -> Callable[[Result], None]:
    """Hand a result to the report, and fail with everything that is wrong about it."""

    def settle(result: Result) -> None:
        trial, problems = result.trial, list(result.failures)
        row = {"op": trial.op, "kind": trial.kind, "dtype": trial.dtype}
        row |= {"samples": result.samples, "fallbacks": result.fallbacks}
        request.node.user_properties.append((PROPERTY, row))
        problems += _not_native(result)
        if not result.samples and result.refused:
            pytest.skip("the adapter has no float64")
        if not result.samples:
            problems.append("PyTorch has no sample for it: this trial tests nothing")
        if problems:
            summary = f"{len(result.failures)} of {result.samples} samples differ"
            pytest.fail("\n".join([summary, *problems[:12]]), pytrace=False)

    return settle
