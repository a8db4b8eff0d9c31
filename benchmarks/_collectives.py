"""The all_reduce of ranks: how long it takes, and each of its steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from _ranks import Row
from torch import distributed as dist

SIZES = [4, 1 << 10, 1 << 16, 1 << 20, 8 << 20, 32 << 20]


def all_reduces(device: str, sizes: Sequence[int], repeats: int) -> Iterator[Row]:
    """A row of each size: medians and least of synchronous ones."""
    dist.init_process_group("gloo" if device == "cpu" else None)
    for size in sizes:
        x = torch.zeros(size // 4, device=device)
        for _ in range(2):
            dist.all_reduce(x)
        times = []
        for _ in range(repeats):
            synchronise(device)
            begin = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - begin)
        row = {
            "part": "collectives", "carrier": "CPU", "bytes": size, "ms": round(1e3 * statistics.median(times), 3),
            "least_ms": round(1e3 * min(times), 3),
        }  # fmt: skip
        yield row if device == "cpu" else row | stages(x, repeats)
    dist.destroy_process_group()


def synchronise(device: str) -> None:
    """All ranks are here, and have nothing to do."""
    if device == "webgpu":
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
    dist.barrier()


def stages(x: torch.Tensor, repeats: int) -> Row:
    """What carries an all_reduce, and milliseconds from each of its steps to the next, medians."""
    from torch_webgpu.distributed.timeline import watching

    with watching() as seen:
        for _ in range(repeats):
            synchronise("webgpu")
            dist.all_reduce(x)
    seen = [timeline for timeline in seen if timeline.collective == "all_reduce"]
    steps = sorted(seen[0].times_ns, key=seen[0].times_ns.__getitem__)  # shared memory issues before it reads
    between = {}
    for before, after in pairwise(steps):
        took = statistics.median(t.times_ns[after] - t.times_ns[before] for t in seen)
        between[f"{before} → {after}"] = round(took / 1e6, 3)
    return {"carrier": seen[0].transport, "stages_ms": between}
