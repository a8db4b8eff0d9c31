"""Programs of several processes, written for CUDA, under ``torchrun``: two adapters train what one CPU trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.ranks import free_port

from .test_programs import PROGRAMS


def on_the_cpu() -> list[float]:
    """The weight after the same steps of whole batches."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 1)
    data, targets = torch.randn(32, 20), torch.randn(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    for _ in range(5):
        optimizer.zero_grad()
        F.mse_loss(model(data), targets).backward()
        optimizer.step()
    return model.weight.flatten().tolist()


@pytest.mark.parametrize(
    ("script", "backend"), [("torchrun_ddp.py", "nccl"), ("torchrun_fsdp2.py", "cpu:gloo,cuda:nccl")]
)
def test_training(script: str, backend: str) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "gpu", "--master-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, *launch, str(PROGRAMS / script)],
        env=os.environ | {"TORCH_WEBGPU_TRANSLATE": "webgpu", "TORCH_WEBGPU_COPIES": "2", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    got = json.loads(done.stdout.strip().splitlines()[-1])
    assert (got["gpu"], got["backend"]) == (True, backend)
    assert got["weight"] == pytest.approx(on_the_cpu(), rel=1e-4, abs=1e-5)
