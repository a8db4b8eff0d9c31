"""What fusion is worth: ``python benchmarks/fusion.py --device webgpu --device cpu --device cuda --plot fusion.png``.

Chains of elementwise operators, softmax, layer_norm, an MLP, cross-entropy and an optimizer's step: how many dispatches
they take, how long they keep the GPU and the host busy, and what share of the bytes that *must* move moves in a second.
A device that fuses (one with ``enable_fusion``) is measured with fusion and without it.

Each device has a process of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
import torch.nn.functional as F
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
from torch import nn

CHAINS = (2, 4, 8, 12, 16, 32)
PARAMETERS = 200
FLOAT_BYTES = 4
BATCH = 64
"""Operators that a device may hold back: results live longer than that, so that all of them must be stored."""


@dataclass(frozen=True)
class Case:
    """``work`` cannot do with fewer than ``must_move_bytes``; it computes ``elements`` results.

    ``keep_last``: how many results stay alive while the device batches as it likes; with 0 each call is submitted.
    """

    name: str
    work: Callable[[], object]
    must_move_bytes: int
    elements: int
    keep_last: int = 0


@dataclass(frozen=True)
class Sizes:
    """How large the tensors are: ``elements`` of a chain, ``width`` of a model, rows of its batches."""

    elements: int
    width: int
    rows: int
    vocabulary: int

    @staticmethod
    def of(device: Device, quick: bool) -> Sizes:
        if quick:
            return Sizes(1 << 14, 32, 16, 200)
        if is_slow(device):
            return Sizes(1 << 22, 128, 256, 2048)
        return Sizes(1 << 26, 768, 4096, 50257)


def chains(device: Device, sizes: Sizes, options: argparse.Namespace) -> Iterator[Case]:
    """``(x * a + b).tanh()`` over and over, cut off after so many operators. Reads once, writes once.

    Each call has another input than the one before, so that no two of a batch could share what they read.
    """
    inputs = cycle([torch.rand(sizes.elements, device=device.device) for _ in range(8)])
    operators: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (lambda t: t * 1.01, lambda t: t + 0.1, torch.tanh)

    def chain(length: int) -> torch.Tensor:
        y = next(inputs)
        for operator in islice(cycle(operators), length):
            y = operator(y)
        return y

    for length in (2, 8) if options.quick else CHAINS:
        moved = 2 * FLOAT_BYTES * sizes.elements
        yield Case(f"chain of {length}", partial(chain, length), moved, sizes.elements, BATCH // length + 2)


def normalisations(device: Device, sizes: Sizes, options: argparse.Namespace) -> Iterator[Case]:
    """A row at a time: read once, write once."""
    columns = min(4096, sizes.elements // 16)
    x = torch.rand(sizes.elements // columns, columns, device=device.device)
    weight, bias = torch.ones(columns, device=device.device), torch.zeros(columns, device=device.device)
    moved = 2 * FLOAT_BYTES * x.numel()
    yield Case("softmax", lambda: torch.softmax(x, 1), moved, x.numel())
    yield Case("layer_norm", lambda: F.layer_norm(x, (columns,), weight, bias), moved, x.numel())


def networks(device: Device, sizes: Sizes, options: argparse.Namespace) -> Iterator[Case]:
    """linear, GELU, linear, and cross-entropy; forward, and with the backward pass."""
    rows, width = sizes.rows, sizes.width
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device.device)
    x = torch.rand(rows, width, device=device.device, requires_grad=True)
    grad = torch.rand(rows, width, device=device.device)
    weights = sum(p.numel() for p in model.parameters())
    hidden, outer = 4 * rows * width, rows * width
    wanted = (x, *model.parameters())

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    # A product's operands come from memory: the hidden layer is written once, after the activation, and read again.
    moved = weights + 2 * outer + 2 * hidden
    yield Case("GELU MLP forward", forward, FLOAT_BYTES * moved, outer)
    # Backward, the weights and the hidden layer (before and after its activation) are read, their gradients written;
    # the hidden gradient is needed by two products.
    moved += hidden + 2 * weights + 3 * outer + 5 * hidden
    step: Callable[[], object] = lambda: torch.autograd.grad(model(x), wanted, grad)
    yield Case("GELU MLP forward+backward", step, FLOAT_BYTES * moved, outer)

    logits = torch.rand(rows, sizes.vocabulary, device=device.device, requires_grad=True)
    targets = torch.randint(0, sizes.vocabulary, (rows,)).to(device.device)
    step = lambda: torch.autograd.grad(F.cross_entropy(logits, targets), logits)
    yield Case("cross-entropy forward+backward", step, 3 * FLOAT_BYTES * logits.numel(), logits.numel())


def adam(device: Device, sizes: Sizes, options: argparse.Namespace) -> Iterator[Case]:
    """Adam over 200 parameters: reads parameter, gradient and two moments, writes all but the gradient."""
    shapes = list(islice(parameter_shapes(options.sizes, sizes), PARAMETERS))
    for kind in ("foreach", "fused"):
        parameters = [torch.rand(shape, device=device.device, requires_grad=True) for shape in shapes]
        for p in parameters:
            p.grad = torch.rand_like(p)
        try:
            optimizer = torch.optim.Adam(parameters, **{kind: True})
            optimizer.step()
        except (RuntimeError, NotImplementedError) as error:
            print(f"{device.device}: no Adam with {kind}=True: {error}", file=sys.stderr)
            continue
        elements = sum(p.numel() for p in parameters)
        yield Case(f"Adam {kind}, {options.sizes}", optimizer.step, 7 * FLOAT_BYTES * elements, elements)


def parameter_shapes(kind: str, sizes: Sizes) -> Iterator[tuple[int, ...]]:
    """``gpt2``: embeddings, then blocks of 12 parameters as they are in GPT-2; ``small``: squares of one width."""
    width = sizes.width
    if kind == "small":
        while True:
            yield min(width, 128), min(width, 128)
    yield from ((sizes.vocabulary, width), (min(1024, 8 * width), width), (width,), (width,))
    while True:
        yield from ((width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,))
        yield from ((width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,))


BENCHMARKS = {"chains": chains, "normalisations": normalisations, "networks": networks, "adam": adam}


def figures(case: Case, device: Device, effort: Effort) -> Iterator[Result]:
    """All there is to say of a case."""
    timing = measure(case.work, device, effort, keep_last=case.keep_last)
    yield duration("time", timing, op=case.name)
    yield rate("must move", case.must_move_bytes, "GB/s", timing, op=case.name)
    host = measure(case.work, device, replace(effort, warm_up_s=0), host_only=True, keep_last=case.keep_last)
    yield duration("host", host, op=case.name)
    picoseconds = [1e12 * s / case.elements for s in (timing.median_s, timing.min_s, timing.max_s)]
    yield Result("time per element", picoseconds[0], "ps", *picoseconds[1:], timing.calls, {"op": case.name})
    seen = kernels(case.work, device)
    if seen is not None:
        yield Result("dispatches", seen.count, "", seen.count, seen.count, 1, {"op": case.name})
        yield Result("on the GPU", seen.gpu_us, "us", seen.gpu_us, seen.gpu_us, 1, {"op": case.name})


def modes(device: Device) -> Iterator[Device]:
    """The device as it is and, where it fuses, without that. Its name says which."""
    module: Any = getattr(torch, device.device.type)
    if not hasattr(module, "disable_fusion"):
        yield device
        return
    yield replace(device, name=f"{device.name}, fused")
    module.disable_fusion()
    try:
        yield replace(device, name=f"{device.name}, unfused")
    finally:
        module.enable_fusion()


def run_device(options: argparse.Namespace) -> int:
    """Everything about one device, as JSON lines."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    failed = False
    effort = QUICK if options.quick else Effort(repeats=5)
    for device in modes(Device.of(options.device[0])):
        for name in options.only.split(",") if options.only else BENCHMARKS:
            fallbacks = device.fallbacks()
            try:
                for case in BENCHMARKS[name](device, Sizes.of(device, options.quick), options):
                    for result in figures(case, device, effort):
                        print(as_json(result, device, device.fallbacks() - fallbacks), flush=True)
                        fallbacks = device.fallbacks()
            except (RuntimeError, TypeError) as error:  # the other benchmarks' figures are worth having all the same
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
    """A line for each case and device."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        key = row["parameters"]["op"], f"{row['device']}: {row['device_name']}"
        cells.setdefault(key, {})[row["benchmark"]] = f"{row['value']:.4g}" + " (CPU!)" * (row["fallbacks"] > 0)
    order = {op: index for index, op in enumerate(dict.fromkeys(op for op, _ in cells))}
    body = [[*key, *(found.get(name, "") for name in COLUMNS)] for key, found in cells.items()]
    return ["", "device", *COLUMNS.values()], sorted(body, key=lambda line: order[line[0]])


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Time per element against the length of a chain, a line for each device and mode."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        name = row["parameters"]["op"]
        if row["benchmark"] == "time per element" and name.startswith("chain of "):
            label = f"{row['device']}: {row['device_name']}"
            lines.setdefault(label, []).append((int(name.removeprefix("chain of ")), row["value"]))
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points)), marker="o", label=label)
    axes.set(xlabel="elementwise operators in the chain", ylabel="time per element (ps)", yscale="log", xscale="log")
    axes.set_xticks(CHAINS, [str(length) for length in CHAINS])
    axes.minorticks_off()
    axes.set_title("A chain of elementwise operators in eager mode, float32")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(BENCHMARKS)}")
    parser.add_argument(
        "--sizes", choices=("small", "gpt2"), default="gpt2", help="the optimizer's parameters (default gpt2)"
    )
    parser.add_argument("--quick", action="store_true", help="small tensors, few repeats: does it run")
    parser.add_argument("--table", action="store_true", help="a table for people (on standard error)")
    parser.add_argument("--plot", metavar="PATH", help="a picture of time per element against the length of a chain")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.in_process:
        return run_device(options)
    flags = ["--sizes", options.sizes, *["--quick"] * options.quick]
    flags += ["--only", options.only] if options.only else []
    rows, failed = run_in_processes(__file__, implementations(options.device, options.implementation), flags)
    if options.table:
        print_rows(*table(rows))
    if options.plot:
        plot(rows, options.plot)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
