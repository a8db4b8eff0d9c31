"""What is known not to match CPU PyTorch yet, and why. A listed trial that passes fails the run: then take it off."""

from __future__ import annotations

from dataclasses import dataclass

from .trials import DTYPES, KINDS, Trial


@dataclass(frozen=True)
class Expected:
    """Trials of one operator that fail. ``op`` is an OpInfo's full name."""

    op: str
    reason: str
    kinds: tuple[str, ...] = KINDS
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def covers(self, trial: Trial) -> bool:
        return trial.op == self.op and trial.kind in self.kinds and trial.dtype in self.dtypes


EXPECTED_FAILURES: tuple[Expected, ...] = ()


def reason(trial: Trial) -> str | None:
    """Why the trial is expected to fail; None if it is not."""
    return next((expected.reason for expected in EXPECTED_FAILURES if expected.covers(trial)), None)
