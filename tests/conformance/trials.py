"""The unit of the conformance run: one operator, one kind of check, one dtype, a few samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

from torch_webgpu.errors import UnsupportedDtypeError

from . import checks, samples
from .seed_ops import SEED_OPINFOS
from .target import fallback_stats, synchronize

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
KINDS = ("forward", "inplace", "out", "backward", "error")
# CUDA source (jiterator), CUDA's own attention kernels.
NOT_OURS = (
    "jiterator",
    "torch.ops.aten._flash",
    "torch.ops.aten._efficient",
)


# PyTorch's entries for random operators seed the generator themselves, inside the call. Here that would hide which
# results are random, and compare the devices' generators, which are not the same.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@cache
def opinfos() -> dict[str, Any]:
    """PyTorch's operator database by full name."""
    return {op.full_name: op for op in op_db if not op.name.startswith(NOT_OURS)}


@dataclass(frozen=True)
class Effort:
    """How many of PyTorch's samples, which further layouts, and how many samples are run several times."""

    count: int
    layouts: tuple[str, ...] = ()
    repeated: int = 2

    def at_most(self, count: int) -> Effort:
        return replace(self, count=min(count, self.count))


RUNS = 3
"""Of a sample that is run several times: the third is recognised and encoded as every later one is."""
ALL_LAYOUTS = (*samples.LAYOUTS, samples.MIXED)


@dataclass(frozen=True)
class Trial:
    """What is run. ``op`` is an OpInfo's full name, ``dtype`` a key of ``DTYPES``."""

    op: str
    kind: str
    dtype: str

    @property
    def is_seed(self) -> bool:
        return self.op in SEED_OPINFOS

    def __str__(self) -> str:
        return f"{self.op}-{self.dtype}"


@dataclass(frozen=True)
class Result:
    """What came of it; passed if there are no ``failures``. ``fallbacks`` counts CPU fallbacks by operator."""

    trial: Trial
    samples: int = 0
    failures: list[str] = field(default_factory=list)
    fallbacks: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    """Samples besides, which ask for float64 where the adapter has none."""


def supports(op: Any, kind: str, dtype: torch.dtype) -> bool:
    """Whether CPU PyTorch has this form of the operator in this dtype, by its OpInfo."""
    if kind == "error":
        has_inputs = op.error_inputs_func is not None and next(iter(op.error_inputs("cpu")), None) is not None
        return dtype == torch.float32 and has_inputs
    if dtype not in op.dtypes:
        return False
    if kind == "inplace":
        return op.inplace_variant is not None
    if kind == "out":
        return op.supports_out
    return kind == "forward" or dtype in op.supported_backward_dtypes("cpu")


def trials(
    ops: Iterable[str], kinds: tuple[str, ...] = KINDS, dtypes: tuple[str, ...] = tuple(DTYPES)
) -> Iterator[Trial]:
    """Every supported combination."""
    for name in ops:
        for dtype in dtypes:
            for kind in kinds:
                if supports(opinfos()[name], kind, DTYPES[dtype]):
                    yield Trial(name, kind, dtype)


def run(trial: Trial, effort: Effort) -> Result:
    """Run every sample, whatever the ones before it did."""
    return attempt(trial, _checks(checks.Case.of(opinfos()[trial.op], DTYPES[trial.dtype]), trial.kind, effort))


def attempt(trial: Trial, labelled_checks: Iterable[tuple[str, Callable[[], None]]]) -> Result:
    """Carry out the checks; the failures name them by their labels."""
    before, count, failures, refused = fallback_stats(), 0, [], 0
    for label, check in labelled_checks:
        count += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's own, about shapes and deprecations that its samples provoke
                check()
                synchronize()
        except Exception as error:  # a MismatchError, or the harness itself: either way this sample has not passed
            if needs_float64(error.__cause__ or error):
                count, refused = count - 1, refused + 1
            else:
                failures.append(f"{label}: {checks.summary(error)}")
            with suppress(Exception):  # what else it left behind must not be blamed on the next one
                synchronize()
    return Result(trial, count, failures, dict(fallback_stats() - before), refused)


def needs_float64(error: BaseException) -> bool:
    """Whether the device refuses a dtype, in words, because the adapter has no doubles."""
    return isinstance(error, UnsupportedDtypeError) and "has no 64-bit floats" in str(error)


def _checks(case: checks.Case, kind: str, effort: Effort) -> Iterator[tuple[str, Callable[[], None]]]:
    if kind == "error":
        for index, error_input in enumerate(case.op.error_inputs("cpu")):
            s = error_input.sample_input
            sample = samples.Sample(str(index), s.input, s.args, s.kwargs, s.output_process_fn_grad)
            check = lambda e=error_input, s=sample: checks.error(case, s, e.error_type)
            yield sample.describe(), check
        return
    chosen = samples.choose(case.op, case.dtype, effort.count, requires_grad=kind == "backward")
    for number, sample in enumerate(samples.with_layouts(case.op, chosen, case.dtype, effort.layouts)):
        runs = RUNS if number < effort.repeated else 1
        yield sample.describe(), lambda sample=sample, runs=runs: getattr(checks, kind)(case, sample, runs)
