"""What is known not to match CPU PyTorch, or not to run on the device, and why.

A listed trial that passes, or that does not fall back, fails the run: then take it off the list.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .trials import Trial


@dataclass(frozen=True)
class Expected:
    """Trials of one operator, module or optimizer (``op``); of every kind or dtype where none is named."""

    op: str
    reason: str
    kinds: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def covers(self, trial: Trial) -> bool:
        same_kind = not self.kinds or trial.kind in self.kinds
        return trial.op == self.op and same_kind and (not self.dtypes or trial.dtype in self.dtypes)


_HALF = ("float16", "bfloat16")
_DENSE_OUT = "the CPU ignores the strides of the tensor it is given, and writes its memory in order"
_STATISTICS = "the saved statistics of half-width inputs are float32, as on CUDA; the CPU's have the inputs' dtype"
_EXCHANGED = "PyTorch exchanges its result and out= in a call of conj_physical, which takes a real input here"

_META = "from 2.14 on PyTorch's meta function gives other strides than the CPU's kernel; the device takes the former"

EXPECTED_FAILURES: tuple[Expected, ...] = (
    Expected("narrow_copy", _DENSE_OUT, ("out",)),
    Expected("fft.ihfftn", _EXCHANGED, ("out",), ("float32",)),
    Expected("native_layer_norm", _STATISTICS, ("forward",), _HALF),
    Expected("native_batch_norm", _STATISTICS, ("forward",), _HALF),
    Expected("_native_batch_norm_legit", _STATISTICS, ("forward",), _HALF),
    Expected("_batch_norm_with_update", _STATISTICS, ("forward",), _HALF),
    *([Expected("native_group_norm", _META, ("forward",), ("float32",))] if torch.__version__ >= (2, 14) else []),
)

# Operators of the seed lists that may run on the CPU.
EXPECTED_FALLBACKS: tuple[Expected, ...] = ()


def reason(trial: Trial) -> str | None:
    """Why the trial is expected to fail; None if it is not."""
    return next((expected.reason for expected in EXPECTED_FAILURES if expected.covers(trial)), None)


def may_fall_back(trial: Trial) -> bool:
    """Whether the trial is expected to need the CPU."""
    return any(expected.covers(trial) for expected in EXPECTED_FALLBACKS)
