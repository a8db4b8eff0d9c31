"""Loading the package changes nothing for programs on the CPU: the same expressions, with it and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ACCELERATOR = "# What PyTorch itself does otherwise"


def accelerators() -> set[str]:
    text = (HERE / "cpu_programs.txt").read_text()
    return set(text[text.index(ACCELERATOR) :].splitlines()[1:])


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, str], dict[str, str]]:
    """What came of each expression: without the package, and with it."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", f"{load}import runpy; runpy.run_path({path!r}, run_name='__main__')"],
            env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for load in ("", "import torch_webgpu; ")
        for path in [str(HERE / "cpu_programs.py")]
    ]
    without, with_it = (json.loads(p.communicate(timeout=300)[0].splitlines()[-1]) for p in started)
    return without, with_it


def is_of_this_build(expression: str) -> bool:
    """Whether a build of PyTorch makes the difference: what it does beside it is not compared."""
    if "Generator" in expression and torch.__version__ < "2.13":
        return True  # its calls could not be intercepted: a class that inherits from it has its name
    return torch.version.cuda is not None and any(name in expression for name in ("pin_memory", "parallel.scatter"))


def test_programs_on_the_cpu_see_no_difference(outcomes: tuple[dict[str, str], dict[str, str]]) -> None:
    without, with_it = outcomes
    expected = accelerators() | set(filter(is_of_this_build, without))
    assert len(without) > 500
    changed = {e: (without[e], with_it[e]) for e in without if e not in expected and without[e] != with_it[e]}
    assert changed == {}


def test_what_an_accelerator_changes_is_listed_for_a_reason(outcomes: tuple[dict[str, str], dict[str, str]]) -> None:
    without, with_it = outcomes
    assert [e for e in accelerators() if without[e] == with_it[e] and not is_of_this_build(e)] == []
