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


EXPECTED_FAILURES: tuple[Expected, ...] = ()


def reason(trial: Trial) -> str | None:
    """Why the trial is expected to fail; None if it is not."""
    return next((expected.reason for expected in EXPECTED_FAILURES if expected.covers(trial)), None)
