"""Linear layers whose weights are of 4 bits (examples/custom_dtypes/int4x2.py), beside float32 and float16 ones.

    python benchmarks/custom_dtypes.py                 # a decoding step's and a prompt's shapes
    python benchmarks/custom_dtypes.py --rows 1 --rows 512 --size 4096

Times are medians of end-to-end calls, each waited for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "custom_dtypes"))
from int4x2 import int4x2

REPEATS = 20


def median_us(call: Callable[[], torch.Tensor]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        torch.webgpu.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[REPEATS // 4 :]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--size", type=int, default=2048)
    options = parser.parse_args()
    weight = torch.randn(options.size, options.size, device="webgpu")
    small = int4x2(weight)
    print(f"{torch.webgpu.get_device_name()}, weights ({options.size}, {options.size}), µs a call")
    for rows in options.rows or [1, 16, 512]:
        for dtype in (torch.float32, torch.float16):
            x, dense = torch.randn(rows, options.size, device="webgpu").to(dtype), weight.to(dtype)
            plain = median_us(lambda: F.linear(x, dense))  # noqa: B023 called at once
            packed = median_us(lambda: F.linear(x, small))  # noqa: B023
            loaded = median_us(lambda: F.linear(x, small.dequantize().to(x.dtype)))  # noqa: B023
            print(f"{rows:5} rows {dtype}: plain {plain:.0f}, 4 bits in place {packed:.0f}, loaded first {loaded:.0f}")


if __name__ == "__main__":
    main()
