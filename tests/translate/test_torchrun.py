"""Programs of several processes, written for CUDA, under ``torchrun``: two adapters train what one CPU trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def run_two(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What rank 0 of two prints."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, *launch, str(PROGRAMS / script), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    printed: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return printed


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_the_example_imagenet(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Samplers, workers, clipping, checkpoints by map_location: as two ranks of the CPU; mixed precision nearly so."""
    if not request.config.getoption("full"):
        pytest.skip("slow: with --full")
    for name in ("cpu", "webgpu"):
        (tmp_path / name).mkdir()
    expected = run_two("torchrun_imagenet.py", str(tmp_path / "cpu"), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    translated = {"TORCH_WEBGPU_TRANSLATE": "webgpu", "TORCH_WEBGPU_COPIES": "2"}
    ours = run_two("torchrun_imagenet.py", str(tmp_path / "webgpu"), **translated)
    assert (ours["gpu"], expected["gpu"]) == (True, False)
    assert ours["ranks"] == expected["ranks"] == 2
    for name in ("losses", "resumed", "accuracy", "resumed_accuracy"):
        assert ours[name] == pytest.approx(expected[name], rel=1e-4), name
    assert ours["mixed"] == pytest.approx(expected["mixed"], rel=1e-2)
    assert ours["mixed"] != ours["losses"], "float16 rounds"
    assert ours["scale"] == 1024
    assert ours["resumed"][0] < ours["losses"][-1] < ours["losses"][0]


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
