"""Generated code changes where it is meant to: plans and WGSL of small programs are those that were reviewed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import EXPECTED, PROGRAMS
from .targets import TARGETS

ROOT = Path(__file__).parents[2]
COMPILE = "import json; from tests.golden.programs import compiled; print(json.dumps(compiled()))"
NAMES = [f"{name}.{device}" for name, program in PROGRAMS.items() for device in program.devices]


@pytest.fixture(scope="module")
def compiled() -> dict[str, str]:
    """In a process of its own, whose adapters are not there."""
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_generated_code_is_what_was_reviewed(name: str, compiled: dict[str, str]) -> None:
    """Where the change is meant, ``python -m tests.golden`` writes the files."""
    assert compiled[name].splitlines() == (EXPECTED / f"{name}.txt").read_text().splitlines()


def test_there_are_no_other_files() -> None:
    assert {path.stem for path in EXPECTED.glob("*.txt")} == set(NAMES)
    assert {device for program in PROGRAMS.values() for device in program.devices} == set(TARGETS)
