"""Every collective of two ranks, on tensors of webgpu, against what the CPU's give or arithmetic says."""

from __future__ import annotations

import gc
import random
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch.distributed import ReduceOp

DEVICE = "webgpu"


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def mine(*shape: int, dtype: torch.dtype = torch.float32, rank: int | None = None) -> torch.Tensor:
    """Numbers of a rank's, on the CPU: small whole ones, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(dist.get_rank() if rank is None else rank)
    return torch.randint(1, 6, shape, generator=generator).to(dtype)


def of_all(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [mine(*shape, dtype=dtype, rank=rank) for rank in range(dist.get_world_size())]


def assert_equal(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert ours.device.type == DEVICE
    torch.testing.assert_close(ours.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX", "MIN", "PRODUCT"])
@on_ranks
def test_all_reduce(op: str) -> None:
    combine = {
        "SUM": torch.add, "AVG": lambda a, b: (a + b) / 2, "MAX": torch.maximum, "MIN": torch.minimum,
        "PRODUCT": torch.mul,
    }[op]  # fmt: skip
    x = mine(3, 5).to(DEVICE)
    assert dist.all_reduce(x, getattr(ReduceOp, op)) is None
    assert_equal(x, combine(*of_all(3, 5)))


@on_ranks
def test_means_of_integers() -> None:
    """As with NCCL: without the fraction."""
    for dtype in (torch.int64, torch.int32, torch.uint8):
        ours = torch.tensor([4, 7, 200], dtype=dtype, device=DEVICE) + dist.get_rank()
        dist.all_reduce(ours, ReduceOp.AVG)
        assert_equal(ours, torch.tensor([4, 7, 200], dtype=dtype))
    below = torch.tensor(-4 - dist.get_rank(), device=DEVICE)
    dist.all_reduce(below, ReduceOp.AVG)
    assert_equal(below, torch.tensor(-4))


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
@on_ranks
def test_all_reduce_of_bits(op: str) -> None:
    combine = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
    x = mine(7, dtype=torch.int32).to(DEVICE)
    dist.all_reduce(x, getattr(ReduceOp, op))
    assert_equal(x, combine(*of_all(7, dtype=torch.int32)))


NAMES = (
    "float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 uint16 uint32 uint64 bool complex64 float8_e4m3fn "
    "float8_e5m2"
).split()


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in NAMES], ids=NAMES)
@on_ranks
def test_dtypes(dtype: torch.dtype) -> None:
    """Each is moved bit for bit, and summed where a sum is defined."""
    own, theirs = (t.to(dtype) for t in (mine(5), mine(5, rank=1 - dist.get_rank())))
    both = of_all(5)
    gathered = torch.zeros(10, dtype=dtype, device=DEVICE)
    dist.all_gather_into_tensor(gathered, own.to(DEVICE))
    assert_bytes(gathered, torch.cat([t.to(dtype) for t in both]))
    x = own.to(DEVICE)
    dist.broadcast(x, 1)
    assert_bytes(x, both[1].to(dtype))
    swapped = torch.zeros(5, dtype=dtype, device=DEVICE)
    for request in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, own.to(DEVICE), 1 - dist.get_rank()),
            dist.P2POp(dist.irecv, swapped, 1 - dist.get_rank()),
        ]
    ):
        request.wait()
    assert_bytes(swapped, theirs)
    x = own.to(DEVICE)
    if dtype == torch.uint64:
        with pytest.raises(RuntimeError, match=r"all_reduce|uint64 cannot be reduced"):
            dist.all_reduce(x)
        return
    dist.all_reduce(x)
    expected = sum(t.to(dtype).to(torch.complex64 if dtype.is_complex else torch.float64) for t in both)
    assert_bytes(x, (expected != 0 if dtype == torch.bool else expected).to(dtype))


def assert_bytes(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert ours.dtype == expected.dtype
    assert ours.cpu().view(torch.uint8).tolist() == expected.view(torch.uint8).tolist()


@on_ranks
def test_strided_and_empty_tensors() -> None:
    x = torch.zeros(6, 4, device=DEVICE)
    x.t().copy_(mine(4, 6))
    dist.all_reduce(x.t())
    assert_equal(x.t(), sum(of_all(4, 6)))
    every_other = torch.arange(10.0, device=DEVICE)
    dist.all_reduce(every_other[1::2])
    assert every_other.tolist() == [0, 2, 2, 6, 4, 10, 6, 14, 8, 18]
    number = torch.tensor(2.0, device=DEVICE)
    dist.all_reduce(number)
    assert number.item() == 4
    empty = torch.empty(0, 3, device=DEVICE)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    assert empty.shape == (0, 3)


@on_ranks
def test_broadcast_and_reduce_touch_only_what_they_should() -> None:
    rank = dist.get_rank()
    x = mine(4).to(DEVICE)
    dist.broadcast(x, 1)
    assert_equal(x, of_all(4)[1])
    y = mine(4).to(DEVICE)
    dist.reduce(y, 1)
    assert_equal(y, sum(of_all(4)) if rank == 1 else of_all(4)[0])


@on_ranks
def test_gathers() -> None:
    rank, both = dist.get_rank(), of_all(2, 3)
    outputs = [torch.zeros(2, 3, device=DEVICE) for _ in range(2)]
    dist.all_gather(outputs, mine(2, 3).to(DEVICE))
    for ours, expected in zip(outputs, both, strict=True):
        assert_equal(ours, expected)
    whole = torch.zeros(4, 3, device=DEVICE)
    dist.all_gather_into_tensor(whole, mine(2, 3).to(DEVICE))
    assert_equal(whole, torch.cat(both))
    views = torch.zeros(2, 2, 3, device=DEVICE)
    dist.all_gather(list(views), mine(2, 3).to(DEVICE))
    assert_equal(views, torch.stack(both))
    gathered = [torch.zeros(2, 3, device=DEVICE) for _ in range(2)] if rank == 0 else None
    dist.gather(mine(2, 3).to(DEVICE), gathered, 0)
    for ours, expected in zip(gathered or (), both, strict=False):
        assert_equal(ours, expected)
    of_ranks = [[torch.zeros(2, 3, device=DEVICE)] for _ in range(2)]
    dist.all_gather_coalesced(of_ranks, [mine(2, 3).to(DEVICE)])
    for (ours,), expected in zip(of_ranks, both, strict=True):
        assert_equal(ours, expected)


@on_ranks
def test_scatters() -> None:
    rank = dist.get_rank()
    x = torch.zeros(3, device=DEVICE)
    dist.scatter(x, [tensor(1, 2, 3), tensor(4, 5, 6)] if rank == 1 else None, 1)
    assert x.tolist() == ([1, 2, 3] if rank == 0 else [4, 5, 6])
    summed = torch.zeros(3, device=DEVICE)
    dist.reduce_scatter(summed, [t.to(DEVICE) for t in mine(2, 3)])
    assert_equal(summed, sum(of_all(2, 3))[rank])
    for op, of_sum in ((ReduceOp.SUM, 1), (ReduceOp.AVG, 2)):
        dist.reduce_scatter_tensor(summed, mine(6).to(DEVICE), op)
        assert_equal(summed, (sum(of_all(6)) / of_sum)[3 * rank : 3 * rank + 3])


@on_ranks
def test_stacked_tensors() -> None:
    """NCCL takes them as well as those that are one after another."""
    rank, stacked = dist.get_rank(), torch.zeros(2, 3, device=DEVICE)
    dist.all_gather_into_tensor(stacked, mine(3).to(DEVICE))
    assert_equal(stacked, torch.stack(of_all(3)))
    x = torch.zeros(3, device=DEVICE)
    dist.reduce_scatter_tensor(x, mine(2, 3).to(DEVICE))
    assert_equal(x, sum(of_all(2, 3))[rank])


@on_ranks
def test_all_to_all() -> None:
    rank = dist.get_rank()
    outputs = [torch.zeros(2, device=DEVICE) for _ in range(2)]
    dist.all_to_all(outputs, [tensor(10 * rank, to) for to in range(2)])
    assert [t.tolist() for t in outputs] == [[0, rank], [10, rank]]
    uneven = [torch.zeros(1 + rank, 2, device=DEVICE), torch.zeros(3 - rank, 2, device=DEVICE)]
    dist.all_to_all(uneven, [torch.full((n, 2), 7.0 + rank, device=DEVICE) for n in ((1, 2) if rank == 0 else (3, 2))])
    assert [t.tolist() for t in uneven] == [[[7.0, 7.0]] * (1 + rank), [[8.0, 8.0]] * (3 - rank)]
    whole = torch.zeros(4, device=DEVICE)
    dist.all_to_all_single(whole, torch.arange(4.0, device=DEVICE) + 10 * rank)
    assert whole.tolist() == [2 * rank, 2 * rank + 1, 2 * rank + 10, 2 * rank + 11]
    # Rank 0 sends one row to itself and two to rank 1, which sends three rows and one.
    sent, received = ([1, 2], [1, 3]) if rank == 0 else ([3, 1], [2, 1])
    x = mine(sum(sent), 2)
    y = torch.zeros(sum(received), 2, device=DEVICE)
    dist.all_to_all_single(y, x.to(DEVICE), received, sent)
    first, second = mine(3, 2, rank=0), mine(4, 2, rank=1)
    assert_equal(y, torch.cat([first[:1], second[:3]] if rank == 0 else [first[1:], second[3:]]))


@on_ranks
def test_messages() -> None:
    rank = dist.get_rank()
    x = mine(3).to(DEVICE)
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
        dist.send(tensor(5), 1, tag=7)
    else:
        y = torch.zeros(3, device=DEVICE)
        dist.recv(y, 0)
        assert_equal(y, of_all(3)[0])
        dist.send(x, 0)
        number = torch.zeros(1, device=DEVICE)
        assert dist.recv(number, tag=7) == 0  # from any rank: it says which
        assert number.item() == 5
    if rank == 0:
        assert_equal(x, of_all(3)[1])


@on_ranks
def test_receives_may_be_called_before_what_they_wait_for() -> None:
    """Both ranks begin to receive before either sends, many at once."""
    other = 1 - dist.get_rank()
    inputs = [torch.zeros(4, device=DEVICE) for _ in range(80)]
    receiving = [dist.irecv(t, other, tag=n) for n, t in enumerate(inputs)]
    sending = [dist.isend(torch.full((4,), float(n), device=DEVICE), other, tag=n) for n in reversed(range(80))]
    for work in (*reversed(receiving), *sending):
        work.wait()
    assert torch.stack(inputs)[:, 0].tolist() == list(range(80))


@on_ranks
def test_objects() -> None:
    rank = dist.get_rank()
    everything: list[Any] = [None, None]
    dist.all_gather_object(everything, {"rank": rank, "x": torch.ones(1, device=DEVICE) * rank})
    assert [(one["rank"], one["x"].item()) for one in everything] == [(0, 0), (1, 1)]
    words = ["one", 2] if rank == 0 else [None, None]
    dist.broadcast_object_list(words, 0)
    assert words == ["one", 2]
    mine_alone: list[Any] = [None]
    dist.scatter_object_list(mine_alone, ["a", "b"] if rank == 0 else None, 0)
    assert mine_alone == ["ab"[rank]]


@on_ranks
def test_barriers() -> None:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    dist.barrier(device_ids=[0])


@on_ranks
def test_coalesced() -> None:
    xs = [mine(3).to(DEVICE), mine(2, 2).to(DEVICE)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    for x, shape in zip(xs, ((3,), (2, 2)), strict=True):
        assert_equal(x, sum(of_all(*shape)))
    with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    assert_equal(xs[0], 2 * sum(of_all(3)))
    wholes = [torch.zeros(4, device=DEVICE) for _ in range(2)]
    with dist._coalescing_manager():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, mine(2).to(DEVICE))
    for whole in wholes:
        assert_equal(whole, torch.cat(of_all(2)))
    parts = [torch.zeros(2, device=DEVICE) for _ in range(2)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, mine(4).to(DEVICE))
    for part in parts:
        assert_equal(part, sum(of_all(4)).chunk(2)[dist.get_rank()])


@on_ranks
def test_functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    rank, group = dist.get_rank(), dist.group.WORLD
    x = mine(4).to(DEVICE)
    assert_equal(functional.all_reduce(x * 2, "sum", group) + 1, 2 * sum(of_all(4)) + 1)
    assert_equal(functional.all_gather_tensor(x, 0, group), torch.cat(of_all(4)))
    assert_equal(functional.reduce_scatter_tensor(x, "avg", 0, group), (sum(of_all(4)) / 2).chunk(2)[rank])
    assert_equal(functional.broadcast(x, 1, group), of_all(4)[1])
    assert_equal(x, mine(4))
    sums = functional.all_reduce_coalesced([x, x + 1], "sum", group)
    assert_equal(sums[1], sum(of_all(4)) + 2)
    swapped = functional.all_to_all_single(x, None, None, group)
    assert_equal(swapped, torch.cat([t.chunk(2)[rank] for t in of_all(4)]))


@on_ranks
def test_gradients_pass_through_collectives() -> None:
    from torch.distributed.nn import functional

    x = mine(3).to(DEVICE).requires_grad_()
    (functional.all_reduce(x * 2) * (dist.get_rank() + 1)).sum().backward()
    assert_equal(x.grad, torch.full((3,), 6.0))


@on_ranks
def test_works_answer() -> None:
    x = mine(1000).to(DEVICE)
    work = dist.all_reduce(x, async_op=True)
    gc.collect()
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0].data_ptr() == x.data_ptr()
    assert work.get_future().done()
    assert work.get_future_result().wait() == 0
    work.synchronize()
    assert_equal(doubled.wait(), 2 * sum(of_all(1000)))
    gone = mine(3).to(DEVICE)
    dist.all_reduce(gone, async_op=True)  # whose work nobody keeps
    del gone
    gc.collect()


@on_ranks
def test_a_work_waits_no_longer_than_asked() -> None:
    if dist.get_rank() == 0:
        x = torch.zeros(1, device=DEVICE)
        work = dist.irecv(x, 1)
        with pytest.raises(
            RuntimeError, match=r"recv of float32\[1\] from rank 1 \(.*rank 0 of 2\): wait\(\) timed out"
        ):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed()
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(tensor(4), 0)
    else:
        work.wait()
        assert x.item() == 4


@on_ranks
def test_parameters_and_saved_tensors() -> None:
    """Writing a parameter is allowed, and saved tensors do not notice: as on other devices."""
    weight = torch.nn.Parameter(mine(3).to(DEVICE))
    dist.broadcast(weight, 0)
    assert_equal(weight.detach(), of_all(3)[0])
    assert weight._version == 0
    x = mine(3).to(DEVICE)
    loss = (weight * x).sum()
    dist.all_reduce(x)
    loss.backward()
    assert_equal(weight.grad, sum(of_all(3)))


@on_ranks
def test_mixed_devices_are_refused_in_words() -> None:
    outputs = [torch.zeros(2) for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"all_gather .*on webgpu and on cpu; a collective takes tensors of one"):
        dist.all_gather(outputs, torch.ones(2, device=DEVICE))


@on_ranks
def test_tensors_of_the_cpu_do_not_overtake_those_of_the_device() -> None:
    """gloo matches collectives by their order; those of webgpu are issued later than they are called."""
    rank = dist.get_rank()
    works = []
    for n in range(20):
        x = torch.full((500,), float(n), device=DEVICE)
        if rank == 1:
            x = (x @ torch.eye(500, device=DEVICE)).sqrt().square().round()  # is there later than on the other rank
        works.append((n, x, dist.all_reduce(x, async_op=True)))
        on_host = torch.full((500,), float(100 + n))
        dist.all_reduce(on_host)
        assert on_host[0].item() == 200 + 2 * n
    for n, x, work in works:
        work.wait()
        assert x[0].item() == 2 * n


@on_ranks
def test_groups() -> None:
    rank = dist.get_rank()
    pair, alone = dist.new_group([0, 1]), dist.new_group([1])
    for group in (pair, dist.new_group([0, 1], backend="gloo"), dist.new_group([0, 1], backend="webgpu")):
        x = mine(3).to(DEVICE)
        dist.all_reduce(x, group=group)
        assert_equal(x, sum(of_all(3)))
        on_host = mine(3)
        dist.all_reduce(on_host, group=group)
        assert on_host.tolist() == sum(of_all(3)).tolist()
    if rank == 1:
        x = mine(3).to(DEVICE)
        dist.all_reduce(x, group=alone)
        assert_equal(x, mine(3))
    half = dist.split_group(split_ranks=[[0], [1]])
    assert half.size() == 1
    x = mine(3).to(DEVICE)
    dist.all_reduce(x, group=half)
    assert_equal(x, mine(3))
    dist.destroy_process_group(pair)


@on_ranks
def test_meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(DEVICE, (2, 1), mesh_dim_names=("a", "b"))
    x = mine(3).to(DEVICE)
    dist.all_reduce(x, group=mesh.get_group("a"))
    assert_equal(x, sum(of_all(3)))
    dist.all_reduce(x, group=mesh.get_group("b"))
    assert_equal(x, sum(of_all(3)))


@on_ranks
def test_many_at_once_from_two_threads() -> None:
    """Each thread has a group of its own, and calls in an order of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        order = random.Random(seed)
        try:
            works = []
            for n in range(50):
                x = torch.full((order.randrange(1, 2000),), float(n), device=DEVICE)
                is_async = order.random() < 0.7
                work = dist.all_reduce(x, group=groups[seed], async_op=is_async)
                works.append((n, x, work))
                if order.random() < 0.1:
                    gc.collect()
            for n, x, work in works:
                if work is not None:
                    work.wait()
                assert bool((x == 2 * n).all()), n
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@on_ranks
def test_callbacks_may_wait_for_other_collectives() -> None:
    def and_again(future: Any) -> torch.Tensor:
        x = future.value()[0].clone()
        dist.all_reduce(x)
        return x

    works = [dist.all_reduce(torch.full((3,), float(n), device=DEVICE), async_op=True) for n in range(3)]
    for n, work in enumerate(works):
        assert work.get_future().then(and_again).wait().tolist() == [4.0 * n] * 3


@on_ranks
def test_what_is_recorded_by_then_is_what_is_sent() -> None:
    x = torch.ones(1000, device=DEVICE)
    for _ in range(5):
        x = x * 2 + dist.get_rank()
        work = dist.all_reduce(x, async_op=True)
        other = torch.ones(10, device=DEVICE).exp().sum()  # is recorded meanwhile
        work.wait()
    expected = [1.0, 1.0]
    for _ in range(5):
        expected = [sum(value * 2 + rank for rank, value in enumerate(expected))] * 2
    assert x[0].item() == expected[0]
    assert other.item() == pytest.approx(27.18, abs=0.1)


@on_ranks
def test_tensors_of_inference_mode() -> None:
    """They are written in other threads, and the memory that carried them then carries others."""
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce_coalesced

    for dtype in (torch.float32, torch.int16):
        with torch.inference_mode():
            x = torch.full((3, 4), dist.get_rank() + 1, dtype=dtype, device="webgpu")
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            assert x.tolist() == [[3] * 4] * 3
            assert all_gather_tensor(x, 0, dist.group.WORLD).shape == (6, 4)
            (y,) = all_reduce_coalesced([x], "sum", dist.group.WORLD)
            assert y[0, 0].item() == 6
        z = torch.ones(3, 4, dtype=dtype, device="webgpu")
        dist.all_reduce(z)
        dist.all_reduce(z, async_op=True).wait()
        assert z[0, 0].item() == 4
