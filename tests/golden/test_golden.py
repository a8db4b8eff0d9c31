"""Generated code changes where it is meant to: plans and WGSL of small programs are those that were reviewed."""

from __future__ import annotations

import json
import os

import pytest
from filelock import FileLock

from .processes import EXPECTED, all_texts
from .programs import PROGRAMS
from .steps import STEPS
from .targets import TARGETS

MAX_BYTES = 1_250_000
"""Of all files together: whoever reviews a change reads them."""
ALL_PROGRAMS = {**PROGRAMS, **STEPS}
NAMES = [f"{name}.{device}" for name, program in ALL_PROGRAMS.items() for device in program.devices]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Once, however many workers run tests."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    file = folder / "golden.json"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(json.dumps(all_texts()))
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_generated_code_is_what_was_reviewed(name: str, made: dict[str, str]) -> None:
    """Where the change is meant, ``python -m tests.golden`` writes the files."""
    assert made[name].splitlines() == (EXPECTED / f"{name}.txt").read_text().splitlines()


def test_there_are_no_other_files() -> None:
    files = [*EXPECTED.iterdir()]
    assert {path.name for path in files} == {f"{name}.txt" for name in NAMES}
    assert {device for program in ALL_PROGRAMS.values() for device in program.devices} == set(TARGETS)
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
