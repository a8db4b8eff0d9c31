"""What tests of the registry share: the example package of third implementations, as if it were installed."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

OWN_PROCESS = "TORCH_WEBGPU_TEST_OWN_PROCESS"
collect_ignore = [] if os.environ.get(OWN_PROCESS) else ["test_devices.py"]
"""Devices that were registered keep their indices for good, so these run in a process of their own."""
EXAMPLE = Path(__file__).parents[3] / "examples" / "third_implementations"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for ``PYTHONPATH`` in which the example package is installed, with what pip would write of it."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    (site / "third_implementations").symlink_to(EXAMPLE / "third_implementations", target_is_directory=True)
    information = site / f"third_implementations-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return site


@pytest.fixture(scope="session")
def faults() -> Iterator[ModuleType]:
    """The module of the implementation that fails on purpose, imported."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        from third_implementations import faults

        yield faults
    finally:
        sys.path.remove(str(EXAMPLE))
