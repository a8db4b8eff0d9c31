"""Scripts in processes of their own: for what ends, breaks or configures a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

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


def assert_ends_well(script: str, **environment: str) -> str:
    """Runs ``script``, which must end with status 0 and say nothing on stderr; what it printed."""
    done = run_script(script, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
