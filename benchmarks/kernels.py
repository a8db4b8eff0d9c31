"""Speed of products, convolutions and attention, as JSON lines: ``python benchmarks/kernels.py --device webgpu``.

``--implementation dawn --implementation wgpu`` measures webgpu through both. Each device has a process of its own.
float32 means float32: TF32 is switched off.
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
    implementations,
    is_slow,
    measure,
    print_figures,
    print_table,
    rate,
    run_in_processes,
)

Benchmark = Callable[[Device, Effort, bool], Iterator[Result]]
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHAPES = (
    *((n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)),
    (16, 4096, 4096), (64, 4096, 4096), (4096, 64, 4096), (4096, 4096, 64),  # short, narrow, a short sum
    (4096, 768, 3072), (4096, 2304, 768), (4096, 50257, 768),  # GPT-2's
    (1000, 1000, 1000), (4095, 4097, 4093),  # sizes that nothing divides
)  # fmt: skip
SMALL = ((64, 64, 64), (128, 96, 80))


def products(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """``a @ b`` in each dtype, and with b transposed, as ``nn.Linear`` has it."""
    for name, dtype in FLOATS.items():
        for m, n, k in SMALL if quick or is_slow(device) else SHAPES:
            a, b, bt = (torch.randn(*s, device=device.device).to(dtype) for s in ((m, k), (k, n), (n, k)))
            for order, work in (("", lambda a=a, b=b: a @ b), (" b.t()", lambda a=a, bt=bt: a @ bt.t())):
                timing = measure(work, device, effort)
                yield rate("product", 2 * m * n * k, "TFLOPS", timing, shape=f"{m}x{n}x{k}{order}", dtype=name)


def integers(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """int8 products with int32 sums."""
    for n in (64,) if quick or is_slow(device) else (1024, 4096, 8192):
        a, b = (torch.randint(-128, 128, (n, n), dtype=torch.int8, device=device.device) for _ in range(2))
        timing = measure(lambda a=a, b=b: torch._int_mm(a, b.t()), device, effort)
        yield rate("product", 2 * n**3, "TFLOPS", timing, shape=f"{n}x{n}x{n}", dtype="int8")


def batched(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Batches of products, as attention has them."""
    for slices, m, n, k in (
        ((2, 32, 32, 16),) if quick or is_slow(device) else ((96, 512, 512, 64), (32, 1024, 1024, 128))
    ):
        for name, dtype in FLOATS.items():
            a, b = (torch.randn(*s, device=device.device).to(dtype) for s in ((slices, m, k), (slices, k, n)))
            timing = measure(lambda a=a, b=b: a @ b, device, effort)
            yield rate("batched", 2 * slices * m * n * k, "TFLOPS", timing, shape=f"{slices}x{m}x{n}x{k}", dtype=name)


def epilogues(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """A product with what follows it in a network."""
    n = 64 if quick or is_slow(device) else 4096
    for name, dtype in FLOATS.items():
        x, w, r = (torch.randn(n, n, device=device.device).to(dtype) for _ in range(3))
        bias = torch.randn(n, device=device.device).to(dtype)
        works = {
            "bias": lambda x=x, w=w, bias=bias: F.linear(x, w, bias),
            "bias, gelu": lambda x=x, w=w, bias=bias: F.gelu(F.linear(x, w, bias)),
            "bias, residual": lambda x=x, w=w, bias=bias, r=r: F.linear(x, w, bias) + r,
        }
        with torch.no_grad():
            for epilogue, work in works.items():
                timing = measure(work, device, effort)
                yield rate("linear", 2 * n**3, "TFLOPS", timing, shape=f"{n}x{n}x{n}", epilogue=epilogue, dtype=name)


def convolutions(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """The 3×3 and 1×1 convolutions of a residual network, forward and backward."""
    batch, channels, side = (1, 8, 8) if quick or is_slow(device) else (32, 256, 28)
    for name, dtype in FLOATS.items():
        for size in (3, 1):
            x, w = (
                torch.randn(*s, device=device.device).to(dtype).requires_grad_()
                for s in ((batch, channels, side, side), (channels, channels, size, size))
            )
            flops = 2 * batch * channels * channels * size * size * side * side
            shape = f"{batch}x{channels}x{side}x{side}, {size}x{size}"
            with torch.no_grad():
                timing = measure(lambda x=x, w=w, p=size // 2: F.conv2d(x, w, padding=p), device, effort)
            yield rate("conv2d", flops, "TFLOPS", timing, shape=shape, dtype=name)
            y = F.conv2d(x, w, padding=size // 2)
            g = torch.randn_like(y)
            timing = measure(
                lambda y=y, x=x, w=w, g=g: torch.autograd.grad(y, (x, w), g, retain_graph=True), device, effort
            )
            yield rate("conv2d backward", 2 * flops, "TFLOPS", timing, shape=shape, dtype=name)


def attention(device: Device, effort: Effort, quick: bool) -> Iterator[Result]:
    """Scaled dot-product attention of a GPT, and of one new token over a long cache (GB/s of the cache)."""
    batch, heads, length, width = (1, 2, 32, 16) if quick or is_slow(device) else (8, 12, 1024, 64)
    for name, dtype in FLOATS.items():
        q, k, v = (torch.randn(batch, heads, length, width, device=device.device).to(dtype) for _ in range(3))
        with torch.no_grad():
            timing = measure(
                lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True), device, effort
            )
            flops = 4 * batch * heads * length * length * width
            shape = f"{batch}x{heads}x{length}x{width}"
            yield rate("attention", flops, "TFLOPS", timing, shape=shape, dtype=name)
            one = q[:, :, -1:]
            timing = measure(lambda q=one, k=k, v=v: F.scaled_dot_product_attention(q, k, v), device, effort)
            size_bytes = 2 * k.numel() * k.element_size()
            yield rate("attention, one token", size_bytes, "GB/s", timing, shape=shape, dtype=name)


BENCHMARKS: dict[str, Benchmark] = {
    "products": products,
    "integers": integers,
    "batched": batched,
    "epilogues": epilogues,
    "convolutions": convolutions,
    "attention": attention,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="small tensors, few repeats: does it run")
    parser.add_argument("--table", action="store_true", help="a table for people, on standard error")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_device(options: argparse.Namespace) -> int:
    """Everything about one device, as JSON lines."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    device = Device.of(options.device[0])
    effort = QUICK if options.quick else Effort(repeats=5, repeat_s=0.1)
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
