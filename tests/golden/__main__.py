"""Writes the golden files anew: ``python -m tests.golden``. What changes in them is for the review."""

from __future__ import annotations

from .processes import EXPECTED, all_texts

for name, text in all_texts().items():
    (EXPECTED / f"{name}.txt").write_text(text)
