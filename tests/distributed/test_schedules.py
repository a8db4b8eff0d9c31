"""Pipelines of several stages a rank: their gradients are those of the whole model in one process."""

from __future__ import annotations

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn.functional import mse_loss

DEVICE = "webgpu"
ROUND = ((0, 2), (1, 3))
BACK_AGAIN = ((0, 3), (1, 2))
STAGES_OF_RANKS = {
    "ScheduleInterleaved1F1B": ROUND,
    "ScheduleLoopedBFS": ROUND,
    "ScheduleInterleavedZeroBubble": ROUND,
    "ScheduleZBVZeroBubble": BACK_AGAIN,
    "ScheduleDualPipeV": BACK_AGAIN,
}


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]


@pytest.mark.parametrize("name", STAGES_OF_RANKS)
@on_ranks
def test_several_stages_on_each_rank(name: str) -> None:
    rank, of_ranks = dist.get_rank(), STAGES_OF_RANKS[name]
    ours = {n: part.to(DEVICE) for n, part in enumerate(parts()) if n in of_ranks[rank]}
    stages = [pipelining.PipelineStage(part, n, 4, torch.device(DEVICE, 0)) for n, part in ours.items()]
    schedule = getattr(pipelining, name)(stages, n_microbatches=4, loss_fn=mse_loss)
    torch.manual_seed(1)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    inputs = (x.to(DEVICE),) if rank == 0 else ()
    targets = {"target": y.to(DEVICE), "losses": []} if 3 in ours else {}
    schedule.step(*inputs, **targets)
    expected = parts()
    mse_loss(nn.Sequential(*expected)(x), y).backward()
    for n, part in ours.items():
        for p, q in zip(part.parameters(), expected[n].parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad)
