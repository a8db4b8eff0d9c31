"""What is known not to match CPU PyTorch yet, and why. A listed trial that passes fails the run: then take it off."""

from __future__ import annotations

from dataclasses import dataclass

from .trials import Trial


@dataclass(frozen=True)
class Expected:
    """Trials of one operator, module or optimizer (``op``) that fail; of every kind or dtype where none is named."""

    op: str
    reason: str
    kinds: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def covers(self, trial: Trial) -> bool:
        same_kind = not self.kinds or trial.kind in self.kinds
        return trial.op == self.op and same_kind and (not self.dtypes or trial.dtype in self.dtypes)


_SPARSE = "PyTorch gives a backend written in Python no sparse tensors"
_COMPLEX32 = "complex32 is not among the dtypes of the device"

EXPECTED_FAILURES: tuple[Expected, ...] = (
    Expected("SparseAdam", _SPARSE),
    Expected("chalf", _COMPLEX32),
)


def reason(trial: Trial) -> str | None:
    """Why the trial is expected to fail; None if it is not."""
    return next((expected.reason for expected in EXPECTED_FAILURES if expected.covers(trial)), None)
