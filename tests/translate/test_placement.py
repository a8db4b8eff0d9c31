"""A program that does not fit is told by how much, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_webgpu.translation import placement


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is translated where there is CUDA")
def test_a_program_that_does_not_fit(tmp_path: Path) -> None:
    program = tmp_path / "large.py"
    program.write_text('import torch\nweights = torch.empty(1 << 50, device="cuda")\n')
    command = [sys.executable, "-m", "torch_webgpu.cli", "run", "--device", "webgpu", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    error, _, advice = done.stderr.partition("Its tensors had at most")
    assert 'weights = torch.empty(1 << 50, device="cuda")' in error
    assert "OutOfMemoryError" in error
    assert "translation" not in error  # no frames of ours
    assert "--device cpu" in advice


def test_figures() -> None:
    host = placement.host_bytes()
    assert host is None or 0 < host[0] <= host[1]
    assert "--device cpu" not in placement.hint("cpu")
