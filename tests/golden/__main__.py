"""Writes the golden files anew: ``python -m tests.golden``. What changes in them is for the review."""

from __future__ import annotations

from .programs import EXPECTED, compiled

for name, text in compiled().items():
    (EXPECTED / f"{name}.txt").write_text(text)
