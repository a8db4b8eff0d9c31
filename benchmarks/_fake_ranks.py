"""What a training step costs the host's thread on many ranks, of which one is there: the others are made believe.

``FakeProcessGroup`` exchanges nothing. What is left is what this rank's thread does: it records the step, calls the
collectives, and packs and unpacks what they move. The fake group itself would copy this rank's part to where each of
the others' belongs, one by one, which no real group has the thread do: it is kept from that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _ddp_step import GPT2, Shape
from _ranks import Row
from host import calls, recorded, undisturbed
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

WORLD_SIZES = (2, 64, 1024)
SHAPE = Shape(128, 4, 4, 512, 64, 2, 32)
WARM_UP, COUNTED = 8, 12
BUCKET_MB = 0.25


def in_ddp(model: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)


def in_fsdp(model: GPT2) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def step_of(model: nn.Module) -> Callable[[], Any]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    tokens = torch.randint(0, SHAPE.vocabulary, (SHAPE.batch, SHAPE.length + 1)).to("webgpu")

    def step() -> torch.Tensor:
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch.webgpu.flush_batch()  # type: ignore[attr-defined]
        return loss.detach()

    return step


def host_costs(ranks: int) -> Iterator[Row]:
    """A row for DistributedDataParallel and one for FSDP2, on rank 0 of so many."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    torch.webgpu.set_batch_delay(0)  # type: ignore[attr-defined]
    for name, wrap in (("DDP", in_ddp), ("FSDP2", in_fsdp)):
        torch.manual_seed(0)
        yield {"part": "host", "program": name, "ranks": ranks, **costs(step_of(wrap(GPT2(SHAPE).to("webgpu"))))}
    dist.destroy_process_group()


def costs(step: Callable[[], Any]) -> Row:
    """Medians of steps in steady state: of this thread's time, and of counts, which are the same on every machine."""
    from torch_webgpu.distributed import fake_transport
    from torch_webgpu.distributed.timeline import watching

    copies, fake_transport.call_backend = fake_transport.call_backend, lambda overload, args: None
    try:
        return _costs(step, watching)
    finally:
        fake_transport.call_backend = copies


def _costs(step: Callable[[], Any], watching: Any) -> Row:
    wait = partial(torch.webgpu.synchronize)  # type: ignore[attr-defined]
    for _ in range(WARM_UP):
        step()
        wait()
    times, counted = [], []
    with undisturbed():
        for _ in range(COUNTED):
            begin = time.thread_time()
            step()
            times.append(time.thread_time() - begin)
            wait()
        for _ in range(COUNTED):
            counted.append(calls(step))
            wait()
            counted[-1] |= recorded(step)
            wait()
    with watching() as seen:
        step()
    medians = {name: statistics.median_low(c[name] for c in counted) for name in counted[0]}
    return {"thread_ms": round(1e3 * statistics.median(times), 3), **medians, "collectives": len(seen)}
