"""Long tests of the runner."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.slow import skip_slow


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_slow(config, items, Path(__file__).parent, "slow: --full runs it")
