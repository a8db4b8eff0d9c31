"""What collectives and training steps of several ranks cost on this machine, and what follows for more of them.

    python benchmarks/distributed.py                      # tables on standard error, JSON lines on standard output
    python benchmarks/distributed.py --plot picture.png   # and a picture
    python benchmarks/distributed.py --parts collectives,model --ranks 4
    python benchmarks/distributed.py --quick              # small sizes, where there is no GPU

| part | what it measures |
|---|---|
| collectives | all_reduce by size, and each step of it: gloo on the CPU, webgpu over gloo and through shared memory |
| step | a training step of GPT-2's size, of one process and of several in DistributedDataParallel |
| host | what a step costs the host's thread on 2 to 1,024 ranks, of which one is there (FakeProcessGroup) |
| model | step time and efficiency of GPT-2 and a 7B model on 2 to 1,024 ranks: computed, from the parts before |
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from _collectives import SIZES, all_reduces
from _cost_model import GPT2, HOOKS, LLAMA_7B, Machine, Ring, fitted, predict
from _ddp_step import SMALL, Shape, Variant, steps
from _fake_ranks import WORLD_SIZES, host_costs
from _harness import print_rows
from _pictures import draw
from _ranks import RanksError, Row, rows_of_ranks

PARTS = ("collectives", "step", "host", "model")
RANKS = (2, 8, 64, 1024)
ALONE_MS = 107.0
"""Of a step of GPT-2 on an H200, where none was measured."""


def collectives(options: argparse.Namespace) -> Iterator[Row]:
    """On the CPU; on webgpu over gloo; and again if shared memory carries them."""
    sizes, repeats = SIZES[: 4 if options.quick else None], options.repeats
    runs = [("cpu", {}), ("webgpu", {"TORCH_WEBGPU_SHARED_MEMORY": "0"}), ("webgpu", {})]
    for device, variables in runs:
        for row in rows_of_ranks(options.ranks, all_reduces, device, sizes, repeats, limit_s=120, variables=variables):
            if variables or device == "cpu" or row["carrier"] != "gloo":
                yield row | {"ranks": options.ranks}


def training(options: argparse.Namespace) -> Iterator[Row]:
    """Steps of one process and of several, and what that comes to."""
    shape = SMALL if options.quick else Shape(batch=options.batch, length=options.length)
    variants = [Variant(dtype, mode == "compiled", hook)
                for mode in options.modes.split(",") for hook in options.hooks.split(",")
                for dtype in options.dtypes.split(",")]  # fmt: skip
    alone: dict[str, float] = {}
    for is_compiled in dict.fromkeys(v.is_compiled for v in variants):
        these = [v for v in variants if v.is_compiled == is_compiled]
        for count in (1, options.ranks):
            wanted = [v for v in these if v.hook == "none"] if count == 1 else these
            try:
                for row in rows_of_ranks(
                    count, steps, shape, wanted, options.device, options.steps, count, limit_s=300
                ):
                    plain = row["variant"].split(", ")[0]
                    if count == 1:
                        alone[plain] = row["ms"]
                    elif plain in alone:
                        row["throughput_ratio"] = round(count * alone[plain] / row["ms"], 3)
                    yield row
            except RanksError as error:
                print(f"step, {count} ranks, {[str(v) for v in wanted]}: {error}", file=sys.stderr)


def host(options: argparse.Namespace) -> Iterator[Row]:
    """Each world size has a process of its own."""
    for size in WORLD_SIZES:
        yield from rows_of_ranks(1, host_costs, size, limit_s=300)


def machine_of(rows: Iterable[Row], network: str) -> Machine | None:
    """What the measured collectives are fitted to; None without any."""
    times: dict[str, list[tuple[float, float]]] = {}
    ranks = 2
    for row in rows:
        if row["part"] == "collectives":
            times.setdefault(row["carrier"], []).append((row["bytes"], row["least_ms"] / 1e3))
            ranks = row["ranks"]
    if not {"CPU", "gloo"} <= times.keys():
        return None
    link = None
    if network:
        gigabytes, alpha_us = map(float, network.split(","))
        link = Ring(alpha_us / 1e6, gigabytes * 1e9)
    return fitted(times, ranks, link)


def modelled(rows: list[Row], options: argparse.Namespace) -> Iterator[Row]:
    """The fit, and what follows."""
    machine = machine_of(rows, options.network)
    if machine is None:
        print("model: needs the part collectives", file=sys.stderr)
        return
    fit = {
        "gloo_alpha_us": 1e6 * machine.gloo.alpha_s, "gloo_GB_s": machine.gloo.bytes_s / 1e9,
        "staging_us": 1e6 * machine.staging.start_s, "staging_GB_s": machine.staging.bytes_s / 1e9,
        "network_alpha_us": 1e6 * machine.network.alpha_s, "network_GB_s": machine.network.bytes_s / 1e9,
    }  # fmt: skip
    if machine.shared:
        fit |= {"shared_us": 1e6 * machine.shared.start_s, "shared_GB_s": machine.shared.bytes_s / 1e9}
    yield {"part": "fit", **{name: round(value, 2) for name, value in fit.items()}}
    measured = [row["ms"] for row in rows if row["part"] == "step" and row["ranks"] == 1 and not options.quick]
    gpt2_ms = options.alone_ms or (measured[0] if measured else ALONE_MS)
    for model in (GPT2, LLAMA_7B):
        alone_s = gpt2_ms / 1e3 * model.elements / GPT2.elements
        for is_flat in (True, False):
            for hook in HOOKS:
                predicted = {n: predict(machine, model, hook, n, alone_s, is_flat) for n in RANKS}
                yield {
                    "part": "model", "model": model.name, "alone_ms": round(1e3 * alone_s, 1),
                    "ring": "flat" if is_flat else "hierarchical", "hook": hook,
                    "exchanged_MB": round(model.exchanged_bytes(hook) / 1e6),
                    "step_ms": {str(n): round(1e3 * p.step_s) for n, p in predicted.items()},
                    "efficiency": {str(n): round(p.efficiency, 3) for n, p in predicted.items()},
                }  # fmt: skip


def tables(rows: list[Row]) -> None:
    """What was found, for people."""
    of = {part: [row for row in rows if row["part"] == part] for part in (*PARTS, "fit")}
    if of["collectives"]:
        body = [
            [f"{r['bytes']:,}", r["carrier"], f"{r['ms']:.3f}", f"{r['least_ms']:.3f}",
             ", ".join(f"{name} {ms:.3f}" for name, ms in r.get("stages_ms", {}).items())]
            for r in sorted(of["collectives"], key=lambda r: r["bytes"])
        ]  # fmt: skip
        print_rows(["all_reduce, bytes", "carried by", "ms", "least", "steps, ms"], body)
    if of["step"]:
        columns = ("ranks", "ms", "least_ms", "tokens_per_s", "throughput_ratio", "transport", "exchanging_ms",
                   "not_overlapped_ms")  # fmt: skip
        print_rows(["training step", *columns], [[r["variant"], *map(str, map(r.get, columns))] for r in of["step"]])
    if of["host"]:
        columns = ("ranks", "thread_ms", "python_calls", "c_calls", "operations", "dispatches", "collectives")
        print_rows(["host", *columns], [[r["program"], *map(str, map(r.get, columns))] for r in of["host"]])
    for row in of["fit"]:
        print_rows(["fitted", ""], [[name, str(value)] for name, value in row.items() if name != "part"])
    if of["model"]:
        body = [
            [f"{r['model']}, {r['ring']}", r["hook"], f"{r['exchanged_MB']:,}",
             *(f"{r['step_ms'][str(n)]:,} ({r['efficiency'][str(n)]:.0%})" for n in RANKS)]
            for r in of["model"]
        ]  # fmt: skip
        print_rows(["step, ms (efficiency), by ranks", "hook", "MB", *map(str, RANKS)], body)


def shown(rows: Iterator[Row], part: str) -> Iterator[Row]:
    """The rows as they come, with what is being done where somebody looks."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as progress:
        task = progress.add_task(part)
        for count, row in enumerate(rows, 1):
            progress.update(task, description=f"{part}: {count} measured")
            yield row


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--device", default="webgpu", help="of training steps: webgpu, cpu")
    parser.add_argument("--dtypes", default="float32,float16", help="float16 by autocast")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--hooks", default="none", help="none,fp16,bf16,PowerSGD")
    parser.add_argument("--batch", type=int, default=8, help="sequences on each rank")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9, help="of collectives")
    parser.add_argument("--network", default="", metavar="GB/s,us", help="between hosts; default: this host's gloo")
    parser.add_argument("--alone-ms", type=float, help="of GPT-2's step on one rank; default: what was measured")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture, with matplotlib")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    parts = options.parts.split(",")
    rows: list[Row] = []
    functions: dict[str, Any] = {"collectives": collectives, "step": training, "host": host}
    failed = False
    for part in [name for name in PARTS if name in parts]:
        found = modelled(rows, options) if part == "model" else functions[part](options)
        try:
            for row in shown(found, part):
                rows.append(row)
                print(json.dumps({**row, "torch": torch.__version__}), flush=True)
        except RanksError as error:
            print(f"{part}: {error}", file=sys.stderr)
            failed = True
    tables(rows)
    if options.plot:
        draw(rows, options.plot)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
