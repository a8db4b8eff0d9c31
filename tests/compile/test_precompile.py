"""PyTorch's ``caching_precompile``: a second process finds Dynamo's code and guards, too, and traces nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = """
import json, sys
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch_webgpu.compile import autograd_cache

if "another version" in sys.argv:
    autograd_cache.sources = lambda: "another version"

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + nn.functional.dropout(self.inner(self.norm(x)).relu(), 0.25, self.training)

torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), nn.Linear(6, 2)).to("webgpu")
compiled = torch.compile(model)
x = torch.linspace(-1, 1, 24, device="webgpu").view(4, 6)
if "training" in sys.argv:
    y = compiled(x)
    y.square().sum().backward()
    results = [y.detach(), *[p.grad for p in model.parameters()]]
else:
    with torch.no_grad():
        results = [compiled(x), compiled(x)]
torch.compiler.save_cache_artifacts()
stats = torch.webgpu.compile_stats()
print(json.dumps({
    "results": [t.tolist() for t in results],
    "traced": counters["frames"]["total"],
    "derived": counters["aot_autograd"]["total"],
    "graphs": stats.graphs,
    "plans": stats.plans,
}))
"""


def run(program: Path, *arguments: str) -> Any:
    folder = program.parent
    environment = {
        **os.environ,
        "TORCH_CACHING_PRECOMPILE": "1",
        "TORCH_WEBGPU_CACHE_DIR": str(folder / "plans"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "caching_precompile"), reason="this PyTorch has no such setting")
@pytest.mark.parametrize(("mode", "graphs"), [("training", 2), ("inference", 1)])
def test_a_second_process_traces_nothing(mode: str, graphs: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    first = run(program, mode)
    assert first["traced"] == first["derived"] == 1
    second = run(program, mode)
    assert second == first | {"traced": 0, "derived": 0}
    assert second["graphs"] == second["plans"] == graphs
    if mode == "training":  # what was made by other code is not read
        assert run(program, mode, "another version") == first
