"""Chunks are copied into shared memory when a collective is called, and results are those of the calls in their order.

Where the adapter takes host memory (Dawn: host-mapped-pointer); else skipped.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_webgpu.distributed import shared_link, shared_ring, shared_slots, shared_transport
from torch_webgpu.distributed.groups import known
from torch_webgpu.distributed.shared_link import Link
from torch_webgpu.engine.imported import takes_host_memory

pytestmark = pytest.mark.skipif(
    not takes_host_memory(0), reason="this adapter takes no host memory (host-mapped-pointer, which is Dawn's)"
)
DEVICE = "webgpu"
LONGEST_WAIT_S = 60


def link_of(group: Any = None) -> Link:
    staging = known(group or dist.group.WORLD)
    assert staging is not None
    assert staging._shared is not None
    assert staging._shared._link is not None, staging.why_through_gloo
    return staging._shared._link


@contextmanager
def no_turn(begun: list[Any]) -> Iterator[Callable[[], None]]:
    """No collective's turn comes until what is given is called. ``begun``: gets those that are called."""
    may_run, begin, run = threading.Event(), Link.begin, Link.run

    def noting(self: Link, collective: Any) -> Any:
        one = begin(self, collective)
        begun.append(one)
        return one

    def held_back(self: Link, *args: Any) -> None:
        assert may_run.wait(LONGEST_WAIT_S)
        run(self, *args)

    Link.begin, Link.run = noting, held_back  # type: ignore[method-assign]
    try:
        yield may_run.set
    finally:
        may_run.set()
        Link.begin, Link.run = begin, run  # type: ignore[method-assign]


@contextmanager
def reduced_by_the_device() -> Iterator[None]:
    """Small tensors, too."""
    plain = shared_transport.HOST_BYTES
    shared_transport.HOST_BYTES = 0
    try:
        yield
    finally:
        shared_transport.HOST_BYTES = plain


@on_ranks
@reduced_by_the_device()
def test_buckets_are_copied_before_the_last_backward_kernels_are_recorded() -> None:
    """No bucket's turn comes until the backward pass is before its last layer: the copies are made by then."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(5)]).to(DEVICE)
    model = DistributedDataParallel(layers, bucket_cap_mb=64 * 65 * 4 / (1 << 20))
    x = torch.randn(8, 64).to(DEVICE)
    for _ in range(2):  # the first orders the buckets
        model(x).sum().backward()
    link, begun = link_of(), []  # type: ignore[var-annotated]
    wanted = [p.grad.cpu() for p in layers.parameters()]
    layers.zero_grad()
    copied = link.copied_ahead
    stood_still: list[tuple[int, int]] = []

    def stand_still(gradient: torch.Tensor) -> None:
        end = time.monotonic() + LONGEST_WAIT_S
        while not all(is_copied() for one in begun for _, is_copied in one.copies):
            assert time.monotonic() < end, "the GPU was to make the copies"
            time.sleep(0.001)
        stood_still.append((len(begun), link.copied_ahead - copied))
        may_run()

    handle = layers[0].register_forward_hook(lambda module, given, output: output.register_hook(stand_still) and None)
    try:
        with no_turn(begun) as may_run:
            model(x).sum().backward()
    finally:
        handle.remove()
    ((before, copies),) = stood_still
    assert before >= 2
    assert copies == before  # each is one chunk
    assert len(begun) == link.copied_ahead - copied > before
    for p, gradient in zip(layers.parameters(), wanted, strict=True):
        torch.testing.assert_close(2 * p.grad.cpu(), gradient)  # of two passes


@on_ranks
@reduced_by_the_device()
def test_what_is_still_to_be_written_is_not_copied_ahead() -> None:
    x, y, whole = torch.ones(1000, device=DEVICE), torch.ones(10, device=DEVICE), torch.empty(2000, device=DEVICE)
    dist.all_reduce(y)
    link, copied, begun = link_of(), [], []  # type: ignore[var-annotated]
    before = link.copied_ahead

    def call(collective: Callable[..., Any], *args: Any) -> None:
        works.append(collective(*args, async_op=True))
        copied.append(link.copied_ahead - before)

    works: list[Any] = []
    with no_turn(begun) as may_run:
        call(dist.all_reduce, x)
        call(dist.all_reduce, x)  # which is to be written
        call(dist.all_gather_into_tensor, whole, torch.ones(1000, device=DEVICE))
        call(dist.all_reduce, x[500:])
        call(dist.all_gather_into_tensor, whole, y.repeat(100))  # is written, not read
        call(dist.broadcast, whole, 1)
        call(dist.all_reduce, y)
        may_run()
        for work in works:
            work.wait()
    assert copied == [1, 1, 2, 2, 3, 3, 4]
    assert x[0].item() == 4
    assert x[500].item() == 8
    assert whole[0].item() == 2
    assert y[0].item() == 4
    dist.all_reduce(x)
    assert link.copied_ahead - before == 5


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("chunks", [1, 5])
@on_ranks
@reduced_by_the_device()
def test_one_submission_copies_and_one_reduces(chunks: int, is_async: bool) -> None:
    """However many chunks; and no thread but the one that calls, and the one that finishes it, has a part in it."""
    x = torch.ones(1 if chunks == 1 else chunks << 21, device=DEVICE)
    dist.all_reduce(x)
    (x + 1).sum().item()
    threads, plain_submit, plain_ticket = [], shared_link.submit, Link.ticket  # type: ignore[var-annotated]

    def submit(index: int) -> Callable[[], bool]:
        threads.append(threading.get_ident())
        return plain_submit(index)

    def ticket(self: Link) -> int:
        threads.append(threading.get_ident())
        return plain_ticket(self)

    shared_link.submit, Link.ticket = submit, ticket  # type: ignore[method-assign]
    try:
        work = dist.all_reduce(x, async_op=is_async)
        if is_async:
            work.wait()
    finally:
        shared_link.submit, Link.ticket = plain_submit, plain_ticket  # type: ignore[method-assign]
    here = threading.get_ident()
    assert len(threads) == 3  # the copy, the place in the order, what reduces and reads
    assert threads[:2] == [here, here]
    assert (threads[2] == here) == (not is_async)
    assert x[0].item() == x[-1].item() == 4


@contextmanager
def small_slots(most: int) -> Iterator[None]:
    """Groups that are made inside have six slots of 64 KiB a rank, and at most so many."""
    names, values = ("SLOTS", "SLOT_BYTES", "MOST_SLOTS"), (6, 1 << 16, most)
    plain = [getattr(shared_slots, name) for name in names]
    for name, value in zip(names, values, strict=True):
        setattr(shared_slots, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, plain, strict=True):
            setattr(shared_slots, name, value)


OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)


class Program:
    """Calls of one group's collectives, on few tensors: on the device, and later on the CPU."""

    def __init__(self, generator: random.Random, group: Any) -> None:
        self._random, self._group = generator, group
        self.works: list[Any] = []
        self._later: list[Callable[[], Any]] = []
        sizes = [generator.choice((2, 1000, 30_000, 150_000)) for _ in range(2)]  # of 64 KiB are 16,384
        seed = generator.randrange(1000) + dist.get_rank()
        numbers = torch.Generator().manual_seed(seed)
        self.hosts = [torch.randint(-9, 9, (n,), dtype=torch.int32, generator=numbers) for n in (*sizes, *sizes)]
        self.hosts += [torch.zeros(2 * n, dtype=torch.int32) for n in sizes]
        self.tensors = [t.to(DEVICE) for t in self.hosts]

    def call(self) -> None:
        """One more."""
        which, on = self._random.randrange(5), self._random.randrange(2)
        every = slice(None, None, self._random.choice((1, 1, 2)))
        operation, root = self._random.choice(OPERATIONS), self._random.randrange(2)
        self.works.append(self._run(self.tensors, which, on, every, operation, root, is_async=True))
        # The CPU's wait for the other rank, which may be in the other group.
        self._later.append(partial(self._run, self.hosts, which, on, every, operation, root, is_async=False))

    def _run(self, tensors: Any, which: int, on: int, every: slice, operation: Any, root: int, is_async: bool) -> Any:
        x, other, wide = tensors[on], tensors[on + 2], tensors[on + 4]
        options: Any = {"group": self._group, "async_op": is_async}
        strided = (other if which == 1 else x)[every]
        part = strided if is_async else strided.contiguous()  # gloo takes no strided tensors
        if which == 0:
            work = dist.all_reduce(part, operation, **options)
        elif which == 1:
            work = dist.broadcast(part, root, **options)
        elif which == 2:
            work = dist.all_gather_into_tensor(wide, x, **options)
        elif which == 3:
            work = dist.reduce_scatter_tensor(other, wide, operation, **options)
        else:
            work = dist.all_reduce(wide, operation, **options)
        if not is_async and which < 2:
            strided.copy_(part)
        return work

    def compute_on_the_cpu(self) -> None:
        """What was called, on the CPU's tensors."""
        for run in self._later:
            run()
        self._later = []

    def go_wrong(self) -> None:
        """A call that differs by rank, on both sides of a slot's size."""
        x = torch.ones(10 + 40_000 * dist.get_rank(), device=DEVICE)
        work = dist.all_reduce(x, group=self._group, async_op=True)
        self.works.append(refused(work))


class refused:  # noqa: N801 a work
    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        with pytest.raises(RuntimeError, match="mismatched collectives"):
            self._work.wait()


def run_programs(groups: Sequence[Any], common: random.Random, own: random.Random) -> None:
    for _ in range(4):
        programs = [Program(common, group) for group in groups]
        for _ in range(4):
            lists = [[common.random() < 0.1 for _ in range(common.randrange(1, 12))] for _ in programs]
            states = [random.Random(common.random()) for _ in programs]
            turns = [k for k, calls in enumerate(lists) for _ in calls]
            own.shuffle(turns)
            for k in turns:
                programs[k]._random = states[k]
                programs[k].go_wrong() if lists[k].pop() else programs[k].call()
            for program in programs:
                own.shuffle(program.works)
                while program.works:
                    program.works.pop().wait()
                program.compute_on_the_cpu()
                for t, host in zip(program.tensors, program.hosts, strict=True):
                    assert torch.equal(t.cpu(), host)


def copied_ahead(group: Any, count: int) -> int:
    """Of so many tensors of a slot each, all of which rank 0 calls before any turn comes. Their sums are right."""
    link, tensors = link_of(group), [torch.full((1 << 14,), float(k), device=DEVICE) for k in range(count)]
    before, works, begun = link.copied_ahead, [], []  # type: ignore[var-annotated]
    with no_turn(begun) as may_run:
        for t in tensors:
            works.append(dist.all_reduce(t, group=group, async_op=True))
            if dist.get_rank():
                may_run()
                works[-1].wait()
        copied = link.copied_ahead - before
        may_run()
        for work in works:
            work.wait()
    assert [t[-1].item() for t in tensors] == [2 * k for k in range(count)]
    return copied


@on_ranks
@reduced_by_the_device()
def test_a_group_whose_rank_lacks_slots_gets_more_on_all_ranks() -> None:
    with small_slots(most=20):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1, device=DEVICE), group=group)
        slots = link_of(group)._slots
        for calls, before, after in ((2, 6, 6), (30, 6, 12), (30, 12, 20), (30, 20, 20)):
            assert slots.count == before
            torch.webgpu.synchronize()
            dist.all_reduce(torch.ones(1, device=DEVICE), group=group)  # tells that all before it was read
            copied = copied_ahead(group, calls)
            if dist.get_rank() == 0:
                usable = before - shared_ring.KEPT_FREE
                assert min(calls, usable - 1) <= copied <= min(calls, usable)  # one may be lent still
            assert slots.count == after
        whole = torch.arange(1 << 20, device=DEVICE)
        dist.all_reduce(whole, group=group)
        assert torch.equal(whole.cpu(), 2 * torch.arange(1 << 20))
        del slots
        dist.destroy_process_group(group)


@pytest.mark.parametrize("seed", range(6))
@on_ranks
def test_programs_of_collectives_compute_what_the_cpu_computes(seed: int) -> None:
    """Two groups, whose calls each rank mixes in an order of its own, and waits for in any."""
    common, own = random.Random(seed), random.Random(100 * seed + dist.get_rank())
    with small_slots(most=(6, 20)[seed % 2]):
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for group in groups:
            dist.all_reduce(torch.ones(1, device=DEVICE), group=group)
            assert link_of(group)._slots.count == 6
        run_programs(groups, common, own)
    for group in groups:
        dist.destroy_process_group(group)
