"""PyTorch's operator database (OpInfo) on the device, against the CPU.

The operators of the project's seed lists run in every dtype and layout, and natively: a CPU fallback fails them. The
rest of the database, the wider run, may fall back; the fallbacks are counted in the table at the end.
"""

from __future__ import annotations

import os
import sys
from zlib import crc32

import pytest

from .conftest import parameters
from .seed_ops import SEED_OPINFOS
from .trials import ALL_LAYOUTS, DTYPES, KINDS, Effort, Trial, opinfos, run, supports, trials

DTYPE_GROUPS = ("float16", "bfloat16"), ("int64", "int32", "uint8", "bool")
"""Of each of these the quick run has one."""
FULL = os.environ.get("TORCH_WEBGPU_CONFORMANCE", "quick") == "full"


def effort(trial: Trial) -> Effort:
    """How hard a trial is tried. The quick run must leave ``make test`` below 15 minutes on two cores."""
    if FULL:
        return Effort(24 if trial.is_seed else 6, ALL_LAYOUTS, repeated=sys.maxsize)
    if not trial.is_seed:
        return Effort(2)
    if trial.kind == "out":
        return Effort(2 if trial.dtype == "float32" else 1)
    return Effort(4, ALL_LAYOUTS) if trial.dtype == "float32" else Effort(1, ("sliced",))


def _trials() -> list[Trial]:
    wider = [name for name in opinfos() if name not in SEED_OPINFOS]
    seeds = [name for name in opinfos() if name in SEED_OPINFOS]
    if FULL:
        return [*trials(seeds), *trials(wider)]
    # Quickly, the wider run asks what is missing, not how every form of it rounds.
    return [*filter(is_sampled, trials(seeds)), *trials(wider, ("forward", "backward"), ("float32",))]


def is_sampled(trial: Trial) -> bool:
    """Whether the quick run has it: all of float32, and of each other group of dtypes one, another for each operator
    and kind.
    """
    for group in DTYPE_GROUPS:
        if trial.dtype in group:
            supported = [d for d in group if supports(opinfos()[trial.op], trial.kind, DTYPES[d])]
            return trial.dtype == supported[crc32(f"{trial.op} {trial.kind}".encode()) % len(supported)]
    return True


TRIALS = _trials()


def of_kind(kind: str) -> list[object]:
    return parameters(trial for trial in TRIALS if trial.kind == kind)


@pytest.fixture
def check(request, settle):
    """Run a trial with the samples that are due, and settle its result."""
    count = request.config.getoption("samples")
    return lambda trial: settle(run(trial, Effort(count, ALL_LAYOUTS) if count else effort(trial)))


@pytest.mark.parametrize("trial", of_kind("forward"))
def test_forward(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", of_kind("inplace"))
def test_inplace(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", of_kind("out"))
def test_out(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", of_kind("backward"))
def test_backward(trial, check):
    check(trial)


@pytest.mark.parametrize("trial", of_kind("error"))
def test_error(trial, check):
    check(trial)


def test_every_kind_is_run():
    assert {trial.kind for trial in TRIALS} == set(KINDS)


def test_every_seed_operator_is_run():
    # PyTorch before 2.12 has no OpInfo for some of them.
    known = opinfos().keys()
    assert {trial.op for trial in TRIALS if trial.is_seed} == SEED_OPINFOS & known
    assert len(SEED_OPINFOS & known) > 0.99 * len(SEED_OPINFOS)
