"""Scripts in processes of their own: for what ends, breaks or configures a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch

SLOW = re.compile(r"webgpu: .* has taken \d+ s so far")
NO_TRITON = "triton not found; flop counting will not work for triton kernels"
"""PyTorch 2.14 says so on systems without Triton, when Dynamo is imported."""
PRELUDE = "import os, sys, threading, time\nimport pytest, torch, torch_webgpu\n"


def run_script(script: str, timeout_s: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` after the imports above, with ``environment`` added to this process's."""
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def assert_ends_well(script: str, code: int = 0, **environment: str) -> str:
    """Runs ``script``, which must end with that status and say nothing on stderr; what it printed.

    How long compiling takes, which is said when it is long, is the machine's business; so is a lack of Triton.
    """
    done = run_script(script, **environment)
    said = [line for line in done.stderr.splitlines() if not SLOW.fullmatch(line) and not line.endswith(NO_TRITON)]
    assert (done.returncode, said) == (code, []), done.stderr
    return done.stdout


def skip_in_a_browser() -> None:
    """For what compares a child process's device with this one's, and runs on a browser's (``torch-webgpu serve``)."""
    if torch.webgpu.get_device_properties(0).implementation == "browser":
        pytest.skip("child processes do not have a browser's device")
