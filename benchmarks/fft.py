"""Accuracy of Fourier transforms, and what they cost: ``python benchmarks/fft.py --device webgpu``.

For each length: the error against float64, relative and root mean square, on the device and on the CPU; dispatches and
bytes in a plan for ``--target``, beside the bytes that a transform reads and writes at least.
"""

from __future__ import annotations

import argparse

import torch

from torch_webgpu.plan import trace
from torch_webgpu.target import named

LENGTHS = (
    64, 1024, 4096, 65_536, 1_048_576,  # powers of two
    81, 2187, 59_049, 531_441,  # of three
    1000, 30_030, 1_000_000,  # other small primes
    61, 1021, 65_537, 1_048_573,  # primes
)  # fmt: skip


def error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, root mean square."""
    return ((result.cpu().to(exact.dtype) - exact).abs().pow(2).mean() / exact.abs().pow(2).mean()).sqrt().item()


def errors(n: int, device: str) -> tuple[float, float]:
    """On the device and on the CPU, of complex64."""
    x = torch.randn(max(1, 4096 // n), n, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    exact = torch.fft.fft(x.to(torch.complex128))
    return error(torch.fft.fft(x.to(device)), exact), error(torch.fft.fft(x), exact)


def costs(n: int, target: str) -> tuple[int, float]:
    """Dispatches of a transform of one line, and what their buffers' sizes come to, beside twice the line's."""
    plan = trace(torch.fft.fft, torch.empty(n, dtype=torch.complex64, device="meta"), target=named(target))
    moved = sum(plan.buffers[number].size_bytes for step in plan.steps for number in step.bindings)
    return len(plan.steps), moved / (16 * n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--target", default="browser")
    options = parser.parse_args()
    print("| length | error | CPU's error | dispatches | bytes / least |\n|---|---|---|---|---|")
    for n in LENGTHS:
        (own, cpu), (dispatches, moved) = errors(n, options.device), costs(n, options.target)
        print(f"| {n:,} | {own:.1e} | {cpu:.1e} | {dispatches} | {moved:.2f} |")


if __name__ == "__main__":
    main()
