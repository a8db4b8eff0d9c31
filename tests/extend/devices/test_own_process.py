"""``test_devices.py``, in a process of its own: a device that was registered keeps its index when it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_registered_devices() -> None:
    tests = str(Path(__file__).with_name("test_devices.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        env=os.environ | {"TORCH_WEBGPU_TEST_OWN_PROCESS": "1"},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
