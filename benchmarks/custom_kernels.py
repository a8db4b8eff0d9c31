"""Kernels of one's own: ``python benchmarks/custom_kernels.py --device webgpu --device cuda --table``.

The kernels of examples/custom_kernel.py and a few more, each beside the same in PyTorch's operators on the same device
("composition"), and on CUDA beside the same kernel in Triton, where that is installed. How long one takes from end to
end, how long it keeps the GPU busy, and what a call costs the host.

Each device has a process of its own.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _harness import (
    QUICK,
    Device,
    Effort,
    Result,
    as_json,
    duration,
    implementations,
    is_slow,
    kernels,
    measure,
    print_rows,
    rate,
    run_in_processes,
)

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "custom_kernel.py"), run_name="example")
FLOAT_BYTES = 4
SMALL = 64
"""Elements of a tensor of which a call costs no more than its recording."""

SWIGLU = """
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(256)
fn swiglu(@builtin(global_invocation_id) id: vec3<u32>) {
    let a = x[id.x];
    out[id.x] = a / (1.0 + exp(-a)) * y[id.x];
}
"""


@dataclass(frozen=True)
class Case:
    """``ways`` to do the same work, by name; it cannot do with moving fewer than ``must_move_bytes``."""

    name: str
    ways: dict[str, Callable[[], object]]
    must_move_bytes: int


def saxpy(device: Device, n: int) -> Case:
    x, y = (torch.randn(n, device=device.device) for _ in range(2))
    ways: dict[str, Callable[[], object]] = {"composition": lambda: y.add_(x, alpha=0.5)}
    if device.device.type == "webgpu":
        kernel = torch.webgpu.compile_shader(EXAMPLE["SAXPY"]).saxpy
        ways = {"kernel": lambda: kernel(x, y, 0.5), **ways}
    elif (triton := _triton()) is not None:
        ways = {"kernel": lambda: triton.saxpy(x, y, 0.5), **ways}
    return Case("saxpy", ways, 3 * FLOAT_BYTES * n)


def swiglu(device: Device, n: int) -> Case:
    x, y, out = (torch.randn(n, device=device.device) for _ in range(3))
    ways: dict[str, Callable[[], object]] = {"composition": lambda: torch.nn.functional.silu(x) * y}
    if device.device.type == "webgpu":
        kernel = torch.webgpu.compile_shader(SWIGLU).swiglu
        ways = {"kernel": lambda: kernel(x, y, out, threads=n // 4), **ways}
    elif (triton := _triton()) is not None:
        ways = {"kernel": lambda: triton.swiglu(x, y, out), **ways}
    return Case("swiglu", ways, 3 * FLOAT_BYTES * n)


def blur(device: Device, n: int) -> Case:
    side = int(n**0.5)
    image, out = (torch.rand(side, side, device=device.device) for _ in range(2))
    ways: dict[str, Callable[[], object]] = {"composition": lambda: EXAMPLE["blurred"](image)}
    if device.device.type == "webgpu":
        kernel = torch.webgpu.compile_shader(EXAMPLE["BLUR"]).blur
        ways = {"kernel": lambda: kernel(image, out, threads=(side, side)), **ways}
    elif (triton := _triton()) is not None:
        ways = {"kernel": lambda: triton.blur(image, out), **ways}
    return Case("blur 3x3", ways, 2 * FLOAT_BYTES * side * side)


def segmented_scan(device: Device, n: int) -> Case:
    x, sums = torch.rand(n, device=device.device), torch.empty(n, device=device.device)
    starts = (torch.rand(n, device=device.device) < 0.05).int()
    ways: dict[str, Callable[[], object]] = {"composition": lambda: EXAMPLE["scanned"](x, starts)}
    if device.device.type == "webgpu":
        kernel = torch.webgpu.compile_shader(EXAMPLE["SEGMENTED_SCAN"]).segmented_scan
        ways = {"kernel": lambda: kernel(x, starts, sums), **ways}
    return Case("segmented scan", ways, 3 * FLOAT_BYTES * n)


CASES = {"saxpy": saxpy, "swiglu": swiglu, "blur": blur, "segmented_scan": segmented_scan}


def _triton() -> Any:
    """The same kernels in Triton; None where that is not installed."""
    try:
        import _triton_kernels
    except ImportError:
        return None
    return _triton_kernels


def figures(case: Case, device: Device, effort: Effort) -> Iterator[Result]:
    for way, work in case.ways.items():
        named = {"op": case.name, "way": way}
        timing = measure(work, device, effort)
        yield duration("time", timing, **named)
        yield rate("must move", case.must_move_bytes, "GB/s", timing, **named)
        ran = kernels(work, device)
        if ran is not None:
            yield Result("dispatches", ran.count, "dispatches", ran.count, ran.count, 1, named)
            yield Result("on the GPU", ran.gpu_us, "us", ran.gpu_us, ran.gpu_us, 1, named)


def host(make: Callable[[Device, int], Case], device: Device, effort: Effort) -> Iterator[Result]:
    """What a call over small tensors costs the program's thread."""
    case = make(device, SMALL)
    for way, work in case.ways.items():
        yield duration("host", measure(work, device, effort, host_only=True, small=True, ahead=512),
                       op=case.name, way=way)  # fmt: skip


def run_device(options: argparse.Namespace) -> int:
    """Prints the figures of one device, a JSON line each."""
    torch.manual_seed(0)
    device, failed = Device.of(options.device[0]), False
    effort = QUICK if options.quick else Effort(repeats=5)
    n = 1 << 14 if options.quick else 1 << 20 if is_slow(device) else 1 << 26
    for name in options.only.split(",") if options.only else CASES:
        fallbacks = device.fallbacks()
        try:
            for found in (figures(CASES[name](device, n), device, effort), host(CASES[name], device, effort)):
                for result in found:
                    print(as_json(result, device, device.fallbacks() - fallbacks), flush=True)
                    fallbacks = device.fallbacks()
        except (RuntimeError, TypeError) as error:  # the other kernels' figures are worth having all the same
            print(f"{device.device} {name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


COLUMNS = {
    "time": "time us",
    "must move": "GB/s",
    "dispatches": "dispatches",
    "on the GPU": "GPU us",
    "host": "host us",
}


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line for each kernel, way and device."""
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        device = f"{row['device']}: {row['device_name']} {row['implementation']}"
        key = row["parameters"]["op"], row["parameters"]["way"], device
        cells.setdefault(key, {})[row["benchmark"]] = f"{row['value']:.4g}" + " (CPU!)" * (row["fallbacks"] > 0)
    order = {op: index for index, op in enumerate(dict.fromkeys(op for op, _, _ in cells))}
    body = [[*key, *(found.get(name, "") for name in COLUMNS)] for key, found in cells.items()]
    return ["", "", "device", *COLUMNS.values()], sorted(body, key=lambda line: order[line[0]])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="small tensors, few repeats: does it run")
    parser.add_argument("--table", action="store_true", help="a table for people (on standard error)")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.in_process:
        return run_device(options)
    flags = [*["--quick"] * options.quick, *(["--only", options.only] if options.only else [])]
    rows, failed = run_in_processes(__file__, implementations(options.device, options.implementation), flags)
    if options.table:
        print_rows(*table(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
