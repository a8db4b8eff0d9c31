"""Writes the golden files anew: ``python -m tests.golden``. What changes in them is for the review."""

from __future__ import annotations

from .processes import EXPECTED, PARTS, texts

for part in PARTS:
    for name, text in texts(part).items():
        (EXPECTED / f"{name}.txt").write_text(text)
