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
def test_the_example_imagenet(tmp_path: Path) -> None:
    """Samplers, workers, clipping, checkpoints by map_location: as two ranks of the CPU; mixed precision nearly so."""
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


EXCHANGE = """
import json, torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
outputs = [torch.zeros(n, 2).cuda() for n in ((1, 3) if rank == 0 else (2, 0))]
# rank 0 sends itself a row and rank 1 two, of a transposed tensor; rank 1 sends three, and itself none
sent = torch.arange(6.0).reshape(2, 3).t().cuda() + 10 * rank
inputs = [sent[:1], sent[1:]] if rank == 0 else [sent, sent[:0]]
work = dist.all_to_all(outputs, inputs, async_op=True)
work.wait()
same = [torch.full((n,), 1 + 1j * rank, dtype=torch.complex64).cuda() for n in (2, 2)]
swapped = [torch.zeros(2, dtype=torch.complex64).cuda() for _ in range(2)]
assert dist.all_to_all(swapped, same) is None
text = json.dumps([[t.tolist() for t in outputs], [str(t.tolist()) for t in swapped]])
texts = [None, None]
dist.all_gather_object(texts, text)
if rank == 0:
    print(json.dumps(texts))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("target", ["cpu", "webgpu"])
def test_lists_of_tensors_are_exchanged(tmp_path: Path, target: str) -> None:
    """Of several sizes, as in NCCL: gloo's own all_to_all takes one, and none before PyTorch 2.12."""
    (tmp_path / "exchange.py").write_text(EXCHANGE)
    texts = run_two(str(tmp_path / "exchange.py"), TORCH_WEBGPU_TRANSLATE=target, TORCH_WEBGPU_COPIES="2")
    assert [json.loads(text) for text in texts] == [
        [[[[0, 3]], [[10, 13], [11, 14], [12, 15]]], ["[(1+0j), (1+0j)]", "[(1+1j), (1+1j)]"]],
        [[[[1, 4], [2, 5]], []], ["[(1+0j), (1+0j)]", "[(1+1j), (1+1j)]"]],
    ]
