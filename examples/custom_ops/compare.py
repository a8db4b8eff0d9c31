"""The examples beside their compositions of PyTorch's operators: what each computes, and how long it takes.

``python examples/custom_ops/compare.py [device] [scale]``
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NAMES = "rope swiglu rms_norm adamw segmented_scan stencil top_k_sampling linear_attention".split()


@dataclass(frozen=True)
class Example:
    """``ours`` and ``composed`` compute the same of ``inputs(scale)``; ``composed`` runs on any device, CUDA's too."""

    name: str
    ours: Callable[..., Tensor]
    composed: Callable[..., Tensor]
    inputs: Callable[..., tuple[Tensor, ...]]


def examples() -> list[Example]:
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    modules = [import_module(name) for name in NAMES]
    return [Example(m.__name__, m.ours, m.composed, m.inputs) for m in modules]


def milliseconds(fn: Callable[..., Any], args: tuple[Tensor, ...], repeats: int = 20) -> float:
    """The least time of several, of calls that follow each other without waiting. Results that nobody keeps are not
    computed.
    """
    times = []
    for _ in range(4):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        results = [fn(*args) for _ in range(repeats)]
        torch.accelerator.synchronize()
        del results
        times.append((time.perf_counter() - start) / repeats * 1e3)
    return min(times[1:])


def main(device: str = "webgpu", scale: str = "1") -> None:
    print(f"{'example':18} {'operator':>10} {'composition':>12}  (ms)")
    for example in examples():
        args = tuple(t.to(device) for t in example.inputs(int(scale)))
        torch.testing.assert_close(example.ours(*args), example.composed(*args), rtol=1e-4, atol=1e-4)
        own, composed = (milliseconds(fn, args) for fn in (example.ours, example.composed))
        print(f"{example.name:18} {own:10.3f} {composed:12.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
