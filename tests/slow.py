"""Tests marked slow, which only long runs take."""

from __future__ import annotations

from pathlib import Path

import pytest


def skip_slow(config: pytest.Config, items: list[pytest.Item], folder: Path, reason: str) -> None:
    """Skips those in ``folder``, unless ``--full`` was given."""
    if config.getoption("full"):
        return
    for item in items:
        if item.path.parent == folder and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason=reason))
