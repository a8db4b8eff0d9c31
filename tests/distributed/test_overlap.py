"""Buckets are exchanged while the backward pass is recorded, and nobody waits with the engine's lock held.

No test looks at how long something takes: what is to go on meanwhile is waited for, and what is to wait is held back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from tests.distributed.ranks import on_ranks
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_webgpu.distributed.timeline import CALLED, UPLOADED, Timeline, watching
from torch_webgpu.engine.sync import Download

DEVICE = "webgpu"
LONGEST_WAIT_S = 60


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONGEST_WAIT_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {LONGEST_WAIT_S} s"
        time.sleep(0.001)


@on_ranks
def test_buckets_are_exchanged_while_the_backward_pass_is_recorded() -> None:
    """It stands still before its last layer, until the buckets of the others have been exchanged."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(5)]).to(DEVICE)
    model = DistributedDataParallel(layers, bucket_cap_mb=64 * 65 * 4 / (1 << 20))
    x = torch.randn(8, 64).to(DEVICE)
    for _ in range(2):  # the first orders the buckets
        model(x).sum().backward()
    seen: list[Timeline] = []
    stood_still: list[tuple[int, int]] = []

    def stand_still(gradient: torch.Tensor) -> None:
        begun = [t for t in seen if t.collective == "all_reduce"]
        wait_until(lambda: all(UPLOADED in t.times_ns for t in begun), f"{len(begun)} buckets were to be exchanged")
        stood_still.append((len(begun), time.perf_counter_ns()))

    handle = layers[0].register_forward_hook(lambda module, given, output: output.register_hook(stand_still) and None)
    try:
        with watching() as seen:
            model(x).sum().backward()
    finally:
        handle.remove()
    buckets = [t for t in seen if t.collective == "all_reduce"]
    ((exchanged, at_ns),) = stood_still
    assert len(buckets) >= 4
    assert exchanged >= 2
    assert all(t.times_ns[UPLOADED] < at_ns for t in buckets[:exchanged])
    assert all(t.times_ns[CALLED] > at_ns for t in buckets[exchanged:])
    assert exchanged < len(buckets)


def use_device() -> None:
    """Records, flushes, and reads back, which all take the engine's lock."""
    assert (torch.arange(1000.0, device=DEVICE) + 1).sum().item() == 500500


@on_ranks
def test_a_rank_that_waits_for_another_lets_its_threads_use_the_device() -> None:
    """Rank 1 comes when rank 0 has used the device meanwhile: after an asynchronous call, beside a synchronous one."""
    store, x = dist.distributed_c10d._get_default_store(), torch.ones(100_000, device=DEVICE)
    for round_, waits in enumerate((False, True)):
        key = f"the device was used/{round_}"
        if dist.get_rank() == 1:
            store.wait([key])
            dist.all_reduce(x)
        else:
            work = None
            thread = threading.Thread(target=dist.all_reduce, args=(x,))
            with watching() as seen:
                if waits:
                    thread.start()
                    wait_until(lambda seen=seen: bool(seen), "all_reduce was to be called")  # type: ignore[misc]
                else:
                    work = dist.all_reduce(x, async_op=True)
                use_device()
            assert UPLOADED not in seen[0].times_ns
            store.set(key, "")
            work.wait() if work is not None else thread.join()
        assert x[0].item() == 2 ** (round_ + 1)


@on_ranks
def test_a_wait_for_the_gpu_lets_other_threads_use_the_device() -> None:
    """Inputs that are not there yet: no download is done until the device was used meanwhile."""
    x, used, plain = torch.ones(100_000, device=DEVICE), threading.Event(), Download.is_done
    asked = threading.Event()

    def is_done(self: Any) -> bool:
        asked.set()
        return used.is_set() and plain(self)

    Download.is_done = is_done  # type: ignore[method-assign]
    try:
        work = dist.all_reduce(x, async_op=True)
        if dist.get_rank() == 0:
            wait_until(lambda: asked.is_set() or work.is_completed(), "a download was to be waited for")
        use_device()
        used.set()
        work.wait()
    finally:
        Download.is_done = plain  # type: ignore[method-assign]
        used.set()
    assert x[0].item() == 2
