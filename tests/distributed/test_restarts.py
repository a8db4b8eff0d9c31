"""``torchrun --max-restarts``: a worker is killed, all are started again, and train on from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.distributed.programs import ended, torchrun
from torch import nn

STEPS = 6
TIMES = 20
WORKER = f"""
import os, signal, sys
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
folder, backend, killed_rank, killed_step, place = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group(None if backend == "default" else backend)
device = "cpu" if backend == "gloo" else "webgpu"
rank, attempt, checkpoint = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), f"{{folder}}/checkpoint"
def dies(step, where):
    if (attempt, rank, step, where) == (0, killed_rank, killed_step, place):
        os.kill(os.getpid(), signal.SIGKILL)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
start = 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint, map_location=device)
    start = state["step"]
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
for step in range(start, {STEPS}):
    dies(step, 0)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
    y = model(x)
    y.register_hook(lambda grad: dies(step, 1))
    (y - x.sum(1, keepdim=True)).pow(2).mean().backward()
    dies(step, 2)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        state = {{"step": step + 1, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}}
        torch.save(state, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
dist.barrier()  # no rank has ended while another may be killed yet
sys.stdout.write(f"rank {{rank}} of attempt {{attempt}} went on from step {{start}}" + chr(10))  # in one write
dist.destroy_process_group()
"""


def trained_on_the_cpu() -> dict[str, torch.Tensor]:
    """What the workers train, in one process."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        seeds = [torch.Generator().manual_seed(10 * step + rank) for rank in range(2)]
        x = torch.cat([torch.randn(16, 8, generator=seed) for seed in seeds])
        (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("time", [0, *(pytest.param(time, marks=pytest.mark.slow) for time in range(1, TIMES))])
def test_it_trains_on(tmp_path: Path, time: int) -> None:
    """Killed at another step, on another rank and at another place of the step each time: 20 of 20 train on."""
    rank, step, place = time % 2, 1 + time % (STEPS - 1), time % 3
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0") if time % 4 == 3 else ()
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    arguments = (str(tmp_path), ("default", "webgpu")[time // 2 % 2], rank, step, place)
    done = ended(torchrun(worker, "--max-restarts", "1", *rendezvous, arguments=arguments))
    assert done.code == 0, done.said
    lines = sorted(done.out.splitlines())
    assert [line.partition(" went")[0] for line in lines] == ["rank 0 of attempt 1", "rank 1 of attempt 1"]
    assert {int(line.split()[-1]) for line in lines} <= {step, step + 1}
    state = torch.load(tmp_path / "checkpoint", map_location="cpu")
    assert state["step"] == STEPS
    for name, wanted in trained_on_the_cpu().items():
        torch.testing.assert_close(state["model"][name], wanted)
