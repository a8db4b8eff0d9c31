"""Eager-mode speed of any torch device, as JSON lines: ``python benchmarks/eager.py --device webgpu --device cuda``.

Measured are what an operator costs the program's thread, in a batch and submitted by itself, what a chain of dependent
tiny operators takes, how long a wait takes, transfers, memory bandwidth, and arithmetic throughput. float32 means
float32: TF32 is switched off. Each device has a process of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from _harness import (
    QUICK,
    Device,
    Effort,
    Result,
    duration,
    implementations,
    is_slow,
    measure,
    print_figures,
    print_table,
    rate,
    run_in_processes,
)

Benchmark = Callable[[Device, Effort, bool], Iterator[Result]]
CHAIN = 64
AHEAD = 16
"""Submissions between two waits."""


def host(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Host time per operator on small tensors, the wait excluded."""
    x, y = (torch.rand(16, 16, device=device.device) for _ in range(2))
    scaled = torch.rand(16, 16, device=device.device)
    works = {
        "add": lambda: x + y,
        "mul_": lambda: scaled.mul_(1.0),
        "matmul": lambda: x @ y,
        "view": lambda: x.view(4, 64),
        "slice": lambda: x[2:5],
        "empty": lambda: torch.empty(16, 16, device=device.device),
        "softmax": lambda: torch.softmax(x, 1),
    }
    with torch.no_grad():
        for name, work in works.items():
            yield duration("host", measure(work, device, effort, host_only=True, small=True), op=name)
    weight = torch.rand(16, 16, device=device.device, requires_grad=True)
    yield duration("host", measure(lambda: x * weight, device, effort, host_only=True, small=True), op="mul, autograd")


def submit(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Host time of an operator that is submitted by itself, the wait excluded."""
    x, y = (torch.rand(16, 16, device=device.device) for _ in range(2))
    for name, work in {"mul_": lambda: x.mul_(1.0), "matmul": lambda: y @ y}.items():
        yield duration("submit", measure(work, device, effort, host_only=True, ahead=AHEAD), op=name)


def launch(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Time per operator of a chain in which each needs the one before, host and device together."""
    x = torch.zeros(16, 16, device=device.device)
    weight = torch.eye(16, device=device.device)

    def add_chain() -> torch.Tensor:
        y = x
        for _ in range(CHAIN):
            y = y.add_(1)
        return y

    def matmul_chain() -> torch.Tensor:
        y = x
        for _ in range(CHAIN):
            y = y @ weight
        return y

    yield duration("launch", measure(add_chain, device, effort, small=True), per=CHAIN, op="add_")
    yield duration("launch", measure(matmul_chain, device, effort, small=True), per=CHAIN, op="matmul")


def sync(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Time until a one-element result is on the host, and of a wait with nothing to wait for."""
    x = torch.zeros(1, device=device.device)
    yield duration("sync", measure(lambda: x.add_(1).item(), device, effort, small=True), what="add_ + item")
    yield duration("sync", measure(device.synchronize, device, effort, small=True), what="idle")


def transfer(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Host to device and back, pageable memory; the return trip into memory that is reused, and into fresh memory."""
    size_bytes = _size_bytes(device, quick) // 4
    on_host = torch.rand(size_bytes // 4)
    on_device = on_host.to(device.device, copy=True)
    landing = torch.empty_like(on_host)
    works = {
        "h2d": lambda: on_device.copy_(on_host),
        "d2h": lambda: landing.copy_(on_device),
        "d2h, fresh": lambda: on_device.to("cpu", copy=True),
    }
    for name, work in works.items():
        yield rate("transfer", size_bytes, "GB/s", measure(work, device, effort), direction=name, bytes=size_bytes)


def bandwidth(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Bytes that must be read and written, in a second."""
    count = _size_bytes(device, quick) // 4
    rows, columns = count // 4096, 4096
    x, y, z = (torch.rand(rows, columns, device=device.device) for _ in range(3))
    size = x.numel() * 4
    weight, bias = torch.ones(columns, device=device.device), torch.zeros(columns, device=device.device)
    works: dict[str, tuple[float, Callable[[], object]]] = {
        "copy": (2, lambda: z.copy_(x)),
        "add": (3, lambda: torch.add(x, y, out=z)),
        "gelu": (2, lambda: F.gelu(x)),
        "sum": (1, x.sum),
        "sum, dim 0": (1, lambda: x.sum(0)),
        "sum, dim 1": (1, lambda: x.sum(1)),
        "softmax": (2, lambda: torch.softmax(x, 1)),
        "layer_norm": (2, lambda: F.layer_norm(x, (columns,), weight, bias)),
        "transpose": (2, lambda: x.t().contiguous()),
        "chain of 12": (2, lambda: _chain(x)),
    }
    with torch.no_grad():
        for name, (passes, work) in works.items():
            timing = measure(work, device, effort)
            yield rate("bandwidth", passes * size, "GB/s", timing, op=name, shape=f"{rows}x{columns}")


def _chain(x: torch.Tensor) -> torch.Tensor:
    """Twelve elementwise operators; a device that fuses them reads and writes once."""
    y = x
    for _ in range(4):
        y = (y * 1.01 + 0.1).tanh()
    return y


def matmul(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Square float32 products, and the matrix-vector product of decoding."""
    for n in _matmul_sizes(device, quick):
        a, b = (torch.rand(n, n, device=device.device) for _ in range(2))
        timing = measure(lambda a=a, b=b: a @ b, device, effort)
        yield rate("matmul", 2 * n**3, "TFLOPS", timing, shape=f"{n}x{n}x{n}", dtype="float32")
    k, n = (1024, 2816) if quick or is_slow(device) else (4096, 11008)
    row, matrix = torch.rand(1, k, device=device.device), torch.rand(k, n, device=device.device)
    timing = measure(lambda: row @ matrix, device, effort)
    yield rate("gemv", 4 * k * n, "GB/s", timing, shape=f"1x{k}x{n}", dtype="float32")


def conv(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """A 3×3 convolution of a residual network, forward, and its backward pass."""
    batch, channels, side = (1, 64, 28) if quick or is_slow(device) else (32, 256, 28)
    x = torch.rand(batch, channels, side, side, device=device.device, requires_grad=True)
    weight = torch.rand(channels, channels, 3, 3, device=device.device, requires_grad=True)
    flops = 2 * batch * channels * channels * 9 * side * side
    shape = f"{batch}x{channels}x{side}x{side}, 3x3"
    with torch.no_grad():
        timing = measure(lambda: F.conv2d(x, weight, padding=1), device, effort)
    yield rate("conv2d", flops, "TFLOPS", timing, shape=shape, dtype="float32")
    output = F.conv2d(x, weight, padding=1)
    grad = torch.rand_like(output)
    timing = measure(lambda: torch.autograd.grad(output, (x, weight), grad, retain_graph=True), device, effort)
    yield rate("conv2d backward", 2 * flops, "TFLOPS", timing, shape=shape, dtype="float32")


BENCHMARKS: dict[str, Benchmark] = {
    "host": host,
    "submit": submit,
    "launch": launch,
    "sync": sync,
    "transfer": transfer,
    "bandwidth": bandwidth,
    "matmul": matmul,
    "conv": conv,
}


def _size_bytes(device: Device, quick: bool) -> int:
    """One operand of the bandwidth benchmarks: beyond every cache, well within memory and what adapters bind."""
    if quick or is_slow(device):
        return 16 << 20 if quick else 64 << 20
    return min(512 << 20, device.memory_bytes // 16)


def _matmul_sizes(device: Device, quick: bool) -> tuple[int, ...]:
    if quick:
        return (256, 512)
    return (256, 512, 1024) if is_slow(device) else (512, 1024, 2048, 4096, 8192)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(BENCHMARKS)}")
    parser.add_argument(
        "--quick", action="store_true", help="small tensors, few repeats: does it run, and roughly how fast"
    )
    parser.add_argument(
        "--table", action="store_true", help="a table for people, after the JSON lines (on standard error)"
    )
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_device(options: argparse.Namespace) -> int:
    """Everything about one device, as JSON lines."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    device = Device.of(options.device[0])
    effort = QUICK if options.quick else Effort()
    names = options.only.split(",") if options.only else list(BENCHMARKS)
    return int(print_figures(device, names, lambda name: BENCHMARKS[name](device, effort, options.quick)))


def main() -> int:
    options = arguments()
    if options.in_process:
        return run_device(options)
    flags = ["--quick"] * options.quick + (["--only", options.only] if options.only else [])
    rows, failed = run_in_processes(__file__, implementations(options.device, options.implementation), flags)
    if options.table:
        print_table(rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
