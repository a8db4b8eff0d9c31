"""The example runs, a few steps of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate.py"


def test_it_recites_the_same_in_eager_mode_and_compiled() -> None:
    found = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "3"], capture_output=True, text=True, timeout=280, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "recite the same" in found.stdout
