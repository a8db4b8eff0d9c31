"""What webgpu takes and gloo does not: PyTorch documents it, or NCCL takes it. And what gloo alone takes."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist

DEVICE = "webgpu"


@on_ranks
def test_messages_to_itself() -> None:
    """In either order, by tags, in the order of the calls, with what was recorded by then."""
    rank = dist.get_rank()
    for receives_first in (True, False):
        sent, got = torch.full((2, 3), rank + 1.0, device=DEVICE), torch.zeros(6, device=DEVICE)
        operations = [dist.P2POp(dist.isend, sent * 2, rank), dist.P2POp(dist.irecv, got, rank)]
        for work in dist.batch_isend_irecv(operations[:: -1 if receives_first else 1]):
            work.wait()
        assert got.tolist() == [2.0 * (rank + 1)] * 6
    inputs = [torch.zeros(1, dtype=torch.int16, device=DEVICE) for _ in range(6)]
    receiving = [dist.irecv(t, rank, tag=n % 2) for n, t in enumerate(inputs)]
    x = torch.zeros(1, dtype=torch.int16, device=DEVICE)
    for n in (0, 2, 1, 4, 3, 5):
        x.fill_(n)
        dist.isend(x, rank, tag=n % 2).wait()
    for work in receiving:
        work.wait()
    assert torch.cat(inputs).tolist() == list(range(6))
    with torch.inference_mode():
        got = torch.zeros(3, device=DEVICE)
        dist.isend(torch.ones(3, device=DEVICE), rank)
        dist.irecv(got, rank).wait()
        assert got.tolist() == [1.0] * 3


@on_ranks
def test_messages_to_itself_and_to_the_other_rank() -> None:
    rank = dist.get_rank()
    got = [torch.zeros(4, device=DEVICE) for _ in range(2)]
    operations = [dist.P2POp(dist.irecv, t, other) for other, t in enumerate(got)]
    operations += [
        dist.P2POp(dist.isend, torch.full((4,), 10.0 * rank + other, device=DEVICE), other) for other in (0, 1)
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert [t[0].item() for t in got] == [rank, 10 + rank]


@on_ranks
def test_messages_to_itself_that_do_not_come_or_fit() -> None:
    rank = dist.get_rank()
    with pytest.raises(ValueError, match="should not be the same as the rank"):
        dist.send(torch.ones(1, device=DEVICE), rank)  # it would wait, as PyTorch says
    dist.isend(torch.ones(3, device=DEVICE), rank)
    with pytest.raises(RuntimeError, match=rf"recv of float32\[2\] from rank {rank} .* sent itself float32\[3\]"):
        dist.irecv(torch.zeros(2, device=DEVICE), rank).wait()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds: this rank has sent itself nothing"):
        dist.irecv(torch.zeros(2, device=DEVICE), rank, group=group).wait()
    late = torch.zeros(2, device=DEVICE)
    dist.isend(torch.ones(2, device=DEVICE), rank, group=group)  # goes to the next, not to the one that gave up
    dist.irecv(late, rank, group=group).wait()
    assert late.tolist() == [1.0, 1.0]


@on_ranks
def test_all_gather_of_several_sizes() -> None:
    rank = dist.get_rank()
    shapes = ((3, 2), (1, 5, 2))
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
        for is_async in (False, True):
            outputs = [torch.zeros(shape, dtype=dtype, device=DEVICE) for shape in shapes]
            given = torch.full(shapes[rank], rank, dtype=dtype, device=DEVICE)
            work = dist.all_gather(outputs, given, async_op=is_async)
            if work is not None:
                work.wait()
            for n, t in enumerate(outputs):
                assert torch.equal(t.cpu(), torch.full(shapes[n], n, dtype=dtype))
    whole = torch.zeros(7, device=DEVICE)
    dist.all_gather(list(whole.split([5, 2])), torch.full((5 if rank == 0 else 2,), rank + 1.0, device=DEVICE))
    assert whole.tolist() == [1.0] * 5 + [2.0] * 2
    empty_first = [torch.zeros(0, device=DEVICE), torch.zeros(2, device=DEVICE)]
    dist.all_gather(empty_first, torch.ones(2 * rank, device=DEVICE))
    assert empty_first[1].tolist() == [1.0, 1.0]


@on_ranks
def test_sparse_tensors_are_refused_in_words() -> None:
    x = torch.eye(2).to_sparse().to(DEVICE)
    for one in (x, x.to_sparse_csr()):
        with pytest.raises(RuntimeError, match=r"all_reduce: sparse tensors of webgpu are not exchanged\. x\.to_dense"):
            dist.all_reduce(one)
    y = torch.eye(2).to_sparse()
    dist.all_reduce(y)
    assert torch.equal(y.to_dense(), 2 * torch.eye(2))


@on_ranks
def test_sums_of_complex_tensors() -> None:
    """Also where the group is called itself, whose gloo takes none."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    mine = torch.arange(12, dtype=torch.float32).view(torch.complex64).view(2, 3) * (rank + 1)
    x = mine.to(DEVICE)
    group.allreduce([x]).wait()
    assert torch.equal(x.cpu(), mine / (rank + 1) * 3)
    x = mine.to(DEVICE)
    group.allreduce([x.t()], dist.AllreduceOptions()).wait()
    assert torch.equal(x.cpu(), mine / (rank + 1) * 3)
    part = torch.empty(3, dtype=torch.complex64, device=DEVICE)
    dist.reduce_scatter_tensor(part, mine.to(DEVICE).flatten())
    assert torch.equal(part.cpu(), (mine / (rank + 1) * 3)[rank])
    product = dist.AllreduceOptions()
    product.reduceOp = dist.ReduceOp.PRODUCT
    with pytest.raises(RuntimeError, match="view_as_real"):
        group.allreduce([mine.to(DEVICE)], product).wait()
