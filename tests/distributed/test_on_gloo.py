"""Tensors of webgpu in a group of gloo, where each rank has an adapter of its own."""

from __future__ import annotations

import pytest
import torch
from tests.distributed.ranks import Ranks, on_ranks
from torch import distributed as dist


@pytest.fixture(scope="module")
def ranks(ranks_on_gloo: Ranks) -> Ranks:
    return ranks_on_gloo


@on_ranks
def test_each_rank_has_its_adapter() -> None:
    """In a group of gloo a program chooses by itself, as with CUDA."""
    torch.webgpu.set_device(dist.get_rank())
    x = torch.ones(2, device="webgpu")
    assert x.device.index == dist.get_rank()
    dist.all_reduce(x)
    assert x.tolist() == [2, 2]


@on_ranks
def test_two_ranks_of_many_may_talk_before_all_do() -> None:
    """Those of webgpu connect when they first exchange something, since the CPU's have connected already."""
    group = dist.new_group([0, 1], backend="gloo")
    x = torch.full((3,), float(dist.get_rank()), device="webgpu")
    if dist.get_rank() == 0:
        dist.send(x, 1, group=group)
    else:
        dist.recv(x, 0, group=group)
        assert x.tolist() == [0, 0, 0]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x + 1 + dist.get_rank(), 1 - dist.get_rank()),
            dist.P2POp(dist.irecv, x, 1 - dist.get_rank()),
        ]
    )
    for work in works:
        work.wait()
    assert x[0].item() == 2 - dist.get_rank()


@on_ranks
def test_tensors_of_the_cpu_do_not_overtake() -> None:
    for n in range(10):
        x, on_host = torch.full((300,), float(n), device="webgpu"), torch.full((300,), 100.0 + n)
        if dist.get_rank():
            x = x.exp().log().round()
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(on_host)
        work.wait()
        assert (x[0].item(), on_host[0].item()) == (2 * n, 200 + 2 * n)
