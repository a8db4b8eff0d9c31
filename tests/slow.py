"""Tests marked slow, which only long runs take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


def skip_slow(config: pytest.Config, items: list[pytest.Item], folder: Path, reason: str) -> None:
    """Skips those in ``folder``, unless ``--full`` was given."""
    if config.getoption("full"):
        return
    for item in items:
        if item.path.parent == folder and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason=reason))


def slow_but(quick: Iterable[Any], all_of_them: Iterable[Any]) -> list[Any]:
    """The values of a parameter, of which all but a few are slow; tuples for several parameters at once."""
    kept = set(quick)
    values = [(value, value if isinstance(value, tuple) else (value,)) for value in all_of_them]
    return [one if one in kept else pytest.param(*each, marks=pytest.mark.slow) for one, each in values]
