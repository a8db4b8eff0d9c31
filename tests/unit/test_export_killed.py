"""An export that is killed leaves the earlier one whole, and the next export clears up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

from torch_webgpu.export import export
from torch_webgpu.export import folder as files

pytest.importorskip("safetensors", reason="exports need safetensors")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")

# Kills itself as a step of the export begins: `os.replace` or `exchanged` (the last step), or `write_json`.
PROGRAM = """
import os, signal, sys, torch
from torch_webgpu.export import export, folder as files
where, number, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
owner = os if where == "replace" else files
original, calls = getattr(owner, where), 0
def step(*args):
    global calls
    calls += 1
    if calls == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args)
setattr(owner, where, step)
if where == "replace":
    files.exchanged = lambda *_: False  # as on systems that cannot
export(torch.nn.Linear(3, 3), torch.zeros(1, 3), folder)
"""


def is_whole(folder: Path) -> bool:
    data = json.loads((folder / "plan.json").read_text())
    return all(sha256((folder / name).read_bytes()).hexdigest() == f["sha256"] for name, f in data["files"].items())


@pytest.mark.parametrize(("where", "number"), [("write_json", 2), ("exchanged", 1), ("replace", 1), ("replace", 2)])
def test_killed_at_a_step(where: str, number: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(nn.Linear(2, 2), torch.zeros(1, 2), out)
    before = (out / "plan.json").read_bytes()
    done = subprocess.run([sys.executable, "-c", PROGRAM, where, str(number), out], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    between = where == "replace" and number == 2  # two renames, where there is no exchange in one step
    assert out.exists() != between
    if not between:
        assert (out / "plan.json").read_bytes() == before
        assert is_whole(out)
    assert len(os.listdir(tmp_path)) == 2
    if between:
        with pytest.raises(RuntimeError, match="stop"), files.replacing(out):
            raise RuntimeError("stop")
        assert (out / "plan.json").read_bytes() == before, "the earlier export came back"
    export(nn.Linear(4, 4), torch.zeros(1, 4), out)
    assert is_whole(out)
    assert (out / "plan.json").read_bytes() != before
    assert os.listdir(tmp_path) == ["out"]


def test_an_export_underway_is_left_alone(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "out") as first:
        (first / "plan.json").write_text('{"producer": "torch-webgpu 1"}')
        export(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "out")
        assert first.exists()
    assert (tmp_path / "out" / "plan.json").read_text() == '{"producer": "torch-webgpu 1"}'
