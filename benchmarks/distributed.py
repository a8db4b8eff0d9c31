"""What collectives of two processes cost on this machine, beside gloo's own on the CPU, and what follows for training.

    python benchmarks/distributed.py              # as JSON lines: each size, the fitted α and B, the model
    python benchmarks/distributed.py --ranks 4    # more processes, which share adapters

A ring's all_reduce of S bytes on N ranks takes 2 (N-1)/N S/B + 2 (N-1) α on the CPU. Staging adds S/D + δ on webgpu,
whatever N. All four are fitted to what was measured. The model is of one host's loopback: other networks have others.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch.multiprocessing import get_context

SIZES = [4, 1 << 10, 1 << 16, 1 << 20, 8 << 20, 32 << 20]
REPEATS = 7
GRADIENT_BYTES = {"GPT-2 124M": 498_000_000, "7B": 28_000_000_000}
BUCKET_BYTES = 25 << 20
RANKS = (2, 8, 64, 1024)


def seconds(tensor: torch.Tensor) -> tuple[float, float]:
    """(median, least) of a synchronous all_reduce."""
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - begin)
    return statistics.median(times), min(times)


def measure(rank: int, count: int, port: int, results: Any) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
    }  # fmt: skip
    dist.init_process_group()
    for size in SIZES:
        row: dict[str, Any] = {"bytes": size}
        for device in ("cpu", "webgpu"):
            x = torch.zeros(size // 4, device=device)
            dist.all_reduce(x)
            median, least = seconds(x)
            row |= {f"{device}_ms": round(1e3 * median, 3), f"{device}_least_ms": round(1e3 * least, 3)}
        row["ratio"] = round(row["webgpu_ms"] / row["cpu_ms"], 2)
        if rank == 0:
            results.put(row)
    dist.destroy_process_group()


def line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """(seconds at 0 bytes, seconds a byte) of a line that misses each time by the same share."""
    slope, start = np.polyfit(sizes, times, 1, w=1 / np.maximum(times, 1e-6))
    return max(float(start), 1e-6), max(float(slope), 1e-12)


def predicted(ranks: int, size: float, alpha: float, bandwidth: float, delta: float = 0, staging: float = 0) -> float:
    """Seconds of the all_reduce of a model's gradients, in buckets."""
    buckets = -(-size // BUCKET_BYTES)
    ring = 2 * (ranks - 1) / ranks * size / bandwidth + 2 * (ranks - 1) * alpha * buckets
    return ring + size * staging + buckets * delta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    count = parser.parse_args().ranks
    context = get_context("spawn")
    results = context.SimpleQueue()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = [context.Process(target=measure, args=(rank, count, port, results)) for rank in range(count)]
    for process in processes:
        process.start()
    rows = []
    for _ in SIZES:
        rows.append(results.get())
        print(json.dumps({"ranks": count, **rows[-1]}), flush=True)
    for process in processes:
        process.join()
    sizes = [row["bytes"] for row in rows]
    of_gloo = [row["cpu_least_ms"] / 1e3 for row in rows]
    start, slope = line(sizes, of_gloo)
    alpha, bandwidth = start / (2 * (count - 1)), 2 * (count - 1) / count / slope
    delta, staging = line(sizes, [max(row["webgpu_least_ms"] / 1e3 - t, 1e-6) for row, t in zip(rows, of_gloo)])
    fit = {"alpha_us": 1e6 * alpha, "B_GB_s": bandwidth / 1e9, "delta_us": 1e6 * delta, "D_GB_s": 1e-9 / staging}
    print(json.dumps({name: round(value, 2) for name, value in fit.items()}))
    for model, size in GRADIENT_BYTES.items():
        for device, added in (("cpu", (0.0, 0.0)), ("webgpu", (delta, staging))):
            times = {str(n): round(1e3 * predicted(n, size, alpha, bandwidth, *added)) for n in RANKS}
            print(json.dumps({"device": device, "gradients": model, "all_reduce_ms_by_ranks": times}))


if __name__ == "__main__":
    main()
