"""PyTorch's module database (ModuleInfo): every ``torch.nn`` layer, forward and backward, against the CPU."""

from __future__ import annotations

from functools import partial

import pytest
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from .checks import SEEDS, identical
from .compare import assert_same, tolerance_of
from .conftest import parameters
from .modules import Step, steps
from .target import CPU, DEVICE
from .trials import DTYPES, Trial, attempt


def check(step: Step) -> None:
    expected, actual = step(CPU), step(DEVICE)
    values = all(identical(pytree.tree_leaves(expected), pytree.tree_leaves(step(CPU, seed=s))) for s in SEEDS[1:4])
    for part in expected:
        truth = partial(lambda part: step(CPU, widen=True)[part], part)
        compare = partial(assert_same, tolerances=tolerance_of(step.info, step.dtype), truth=truth, values=values)
        compare(actual[part], expected[part], strides=part == "output")


TRIALS = [
    Trial(info.name, "module", dtype)
    for info in module_db
    for dtype in ("float32", "float16", "bfloat16")
    if DTYPES[dtype] in info.dtypes
]


@pytest.mark.parametrize("trial", parameters(TRIALS))
def test_module(trial, request, settle):
    count = request.config.getoption("samples") or (100 if request.config.getoption("full") else 6)
    checks = ((label, partial(check, step)) for label, step in steps(trial.op, DTYPES[trial.dtype], count))
    settle(attempt(trial, checks))
