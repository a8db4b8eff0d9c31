"""Ranks on webgpu train as the same ranks do on the CPU, over gloo, in the same processes."""

from __future__ import annotations

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

DEVICE = "webgpu"
STEPS = 20


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


def losses(model: nn.Module, device: str, **options: bool) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **options)
    generator = torch.Generator().manual_seed(dist.get_rank())
    taken = []
    for _ in range(STEPS):
        x, y = torch.randn(8, 20, generator=generator), torch.randn(8, 3, generator=generator)
        optimizer.zero_grad()
        loss = mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        taken.append(loss.item())
    return taken


@pytest.mark.parametrize("way", ["eager", "fused", "compiled"])
@on_ranks
def test_adam(way: str) -> None:
    """20 steps. No gradient is zero but for its rounding, which Adam would turn into a step of its own."""
    on_cpu = DistributedDataParallel(network())
    expected = losses(on_cpu, "cpu")
    model = DistributedDataParallel(network().to(DEVICE))
    ours = losses(torch.compile(model) if way == "compiled" else model, DEVICE, fused=way == "fused")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)
    everywhere: list[list[torch.Tensor] | None] = [None, None]
    dist.all_gather_object(everywhere, [p.detach().cpu() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*everywhere, strict=True))
