"""PyTorch's operator database (OpInfo) on the device, against the CPU.

The operators of the project's seed lists run in every dtype and layout, and natively: a CPU fallback fails them. The
rest of the database, the wider run, may fall back; the fallbacks are counted in the table at the end.
"""

from __future__ import annotations

import os

import pytest

from .expected_failures import reason
from .report import PROPERTY
from .seed_ops import SEED_OPINFOS
from .trials import ALL_LAYOUTS, KINDS, Effort, Trial, opinfos, run, trials

FULL = os.environ.get("TORCH_WEBGPU_CONFORMANCE", "quick") == "full"


def effort(trial: Trial) -> Effort:
    """How hard a trial is tried. The quick run must leave ``make test`` below 15 minutes on two cores."""
    if FULL:
        return Effort(24 if trial.is_seed else 6, ALL_LAYOUTS)
    if not trial.is_seed:
        return Effort(2)
    if trial.kind == "out":
        return Effort(2 if trial.dtype == "float32" else 1)
    return Effort(6, ALL_LAYOUTS) if trial.dtype == "float32" else Effort(2, ("sliced",))


def _trials() -> list[Trial]:
    wider = [name for name in opinfos() if name not in SEED_OPINFOS]
    seeds = [name for name in opinfos() if name in SEED_OPINFOS]
    # Quickly, the wider run asks what is missing, not how every form of it rounds.
    rest = trials(wider) if FULL else trials(wider, ("forward", "backward"), ("float32",))
    return [*trials(seeds), *rest]


def _parameters(kind: str) -> list[object]:
    def marks(trial: Trial) -> list[pytest.MarkDecorator]:
        why = reason(trial)
        return [pytest.mark.xfail(reason=why, strict=True, raises=pytest.fail.Exception)] if why else []

    return [pytest.param(t, id=str(t), marks=marks(t)) for t in _TRIALS if t.kind == kind]


_TRIALS = _trials()


@pytest.fixture
def check(request: pytest.FixtureRequest):
    """Run a trial, report it, and fail with every sample that differs."""

    def check(trial: Trial) -> None:
        count = request.config.getoption("samples")
        result = run(trial, Effort(count, ALL_LAYOUTS) if count else effort(trial))
        row = {"op": trial.op, "kind": trial.kind, "dtype": trial.dtype}
        request.node.user_properties.append(
            (PROPERTY, {**row, "samples": result.samples, "fallbacks": result.fallbacks})
        )
        problems = list(result.failures)
        if trial.is_seed and result.fallbacks:
            problems.append(f"not native: fell back to the CPU for {result.fallbacks}")
        if not result.samples:
            problems.append("PyTorch has no sample for it: this trial tests nothing")
        if problems:
            pytest.fail(
                "\n".join([f"{len(result.failures)} of {result.samples} samples differ", *problems[:12]]), pytrace=False
            )

    return check


@pytest.mark.parametrize("trial", _parameters("forward"))
def test_forward(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", _parameters("inplace"))
def test_inplace(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", _parameters("out"))
def test_out(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", _parameters("backward"))
def test_backward(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", _parameters("error"))
def test_error(trial, check):
    check(trial)


def test_kinds_are_all_run():
    assert {t.kind for t in _TRIALS} == set(KINDS)
