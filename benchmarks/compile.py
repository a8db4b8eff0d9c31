"""What torch.compile is worth: ``python benchmarks/compile.py --device webgpu --device cuda``, as JSON lines.

Whole models with random weights (``_models.py``), eager and compiled: decoding, prompts, training steps, inference.
Measured are microseconds a step, kernels a step and the host's time for each, and the peak of the memory in use. A
dtype after "training" is autocast's. On CUDA compiled means ``mode="reduce-overhead"`` for inference.

The first step is timed from ``torch.compile`` on, in a process that has imported the compiler and run an eager step: in
a first process, in a second one ("warm"), and with ``--packages`` in one that finds Dynamo's code, too ("packaged":
PyTorch's ``TORCH_CACHING_PRECOMPILE``). PyTorch's clocks say how much of it is Dynamo's, and AOTAutograd's with the
backend; the rest is plans, pipelines and the step. With ``--together`` first steps are not timed: all models are
prepared at the same time, each in a process, and then measured one after the other, which takes a quarter of the time.

Needs transformers, and torchvision for models of images.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

import torch
from _harness import (
    QUICK,
    Device,
    Effort,
    Result,
    duration,
    implementations,
    kernels,
    measure,
    print_figures,
    print_table,
    run_in_processes,
    run_in_turns,
    wait_for_turn,
)
from _models import CASES, Case, Step

MIB = 1 << 20
AHEAD = 8
"""Steps that the host is ahead of the GPU at most where the host is timed: farther ahead it waits."""
WARM_STEPS = 5
AUTO = "auto"
"""The eager step under ``torch.webgpu.auto_compile()``: on webgpu alone."""
MODES = ("eager", "compiled", AUTO)
BEFORE_AUTO = 6
"""Steps after which all that repeats is compiled."""


def figures(
    name: str, device: Device, effort: Effort, quick: bool, modes: Sequence[str], waits: bool = False
) -> Iterator[Result]:
    """Everything about one model. ``waits``: until it may be measured."""
    modes = [mode for mode in modes if mode != AUTO or device.device.type == "webgpu"]
    if not modes:
        return
    torch.manual_seed(0)
    case = CASES[name](device, quick)
    case.eager()
    steps = {"eager": case.eager}
    if "compiled" in modes:
        steps["compiled"], results = first_step(case, device, "first step", name)
        if not waits:
            yield from results
    if waits:
        for step in steps.values():
            for _ in range(WARM_STEPS):
                step()
        if AUTO in modes:
            begin_auto(case.eager)
        device.synchronize()
        wait_for_turn()
    for mode in modes:
        step = steps.get(mode, case.eager)
        if mode == AUTO and not waits:
            begin_auto(step)
        reset = getattr(getattr(torch, device.device.type), "reset_peak_memory_stats", None)
        if reset is not None:
            reset()
        timing = measure(step, device, effort)
        yield duration("step", timing, model=name, mode=mode)
        host = measure(step, device, effort, host_only=True, ahead=AHEAD)
        found = kernels(step, device)
        if found is not None:
            count = float(found.count)
            yield Result("kernels", count, "", count, count, 1, {"model": name, "mode": mode})
            yield Result("on the GPU", found.gpu_us, "us", found.gpu_us, found.gpu_us, 1, {"model": name, "mode": mode})
            yield duration("host per kernel", host, per=max(1, found.count), model=name, mode=mode)
        if reset is not None:
            peak = getattr(torch, device.device.type).max_memory_allocated() / MIB
            yield Result("peak memory", peak, "MiB", peak, peak, 1, {"model": name, "mode": mode})
        if mode == AUTO:
            for row in torch.webgpu.auto_compile_stats().modules:  # type: ignore[attr-defined]
                print(f"{name}: {dict(row)}", file=sys.stderr)
            torch.webgpu.auto_compile(False)  # type: ignore[attr-defined]


def begin_auto(step: Step) -> None:
    """Has modules compiled by themselves, and waits until they are."""
    torch.webgpu.auto_compile()  # type: ignore[attr-defined]
    for _ in range(BEFORE_AUTO):
        step()


def first_step(case: Case, device: Device, benchmark: str, name: str) -> tuple[Step, list[Result]]:
    """The compiled step; how long it takes from ``torch.compile`` until it is done once, and PyTorch's parts of it."""
    device.synchronize()
    before, start = compile_seconds(), time.perf_counter()
    compiled = case.compile()
    compiled()
    device.synchronize()
    took = {benchmark: time.perf_counter() - start}
    took |= {f"{benchmark}: {part}": after - before[part] for part, after in compile_seconds().items()}
    about = {"model": name, "mode": "compiled"}
    return compiled, [Result(figure, s, "s", s, s, 1, about) for figure, s in took.items()]


def compile_seconds() -> dict[str, float]:
    """What PyTorch's compiler has taken in this process, by its own clocks."""
    spent = torch._dynamo.utils.calculate_time_spent()
    whole, backend = (spent.get(f"{part}_compile", 0.0) for part in ("entire_frame", "backend"))
    return {"Dynamo": whole - backend, "AOTAutograd and backend": backend}


def again(name: str, device: Device, quick: bool) -> Iterator[Result]:
    """The first compiled step where another process has compiled it before; what it compiled is left to the next."""
    packages = getattr(torch._dynamo.config, "caching_precompile", False)
    case = CASES[name](device, quick)
    case.eager()
    yield from first_step(case, device, "first step, packaged" if packages else "first step, warm", name)[1]
    if packages:
        torch.compiler.save_cache_artifacts()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", action="append", metavar="NAME", help="webgpu (default), cpu, cuda, …; repeatable")
    parser.add_argument(
        "--implementation", action="append", metavar="NAME", help="of WebGPU: wgpu, dawn, auto (default); repeatable"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(CASES)}")
    parser.add_argument(
        "--modes",
        metavar="NAMES",
        help="comma-separated, of eager,compiled,auto (eager steps that auto_compile() compiles, on webgpu alone); "
        "nothing of a second process; default eager,compiled",
    )
    parser.add_argument("--quick", action="store_true", help="small models, few repeats: does it run")
    parser.add_argument("--packages", action="store_true", help="also the first step where Dynamo's packages are found")
    parser.add_argument("--table", action="store_true", help="a table for people, on standard error")
    parser.add_argument("--together", action="store_true", help="prepare all models at once; no first steps")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def modes_of(options: argparse.Namespace) -> list[str]:
    """What is measured. SystemExit for a mode that there is not."""
    modes = (options.modes or "eager,compiled").split(",")
    if unknown := set(modes) - set(MODES):
        raise SystemExit(f"no such mode: {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    return modes


def run_device(options: argparse.Namespace) -> int:
    """Everything about one device, as JSON lines."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = Device.of(options.device[0])
    torch.compile(lambda: None)  # imports the compiler, which takes a second or two whatever is compiled
    effort = QUICK if options.quick else Effort(repeats=5)

    def measured(name: str) -> Iterator[Result]:
        torch._dynamo.reset()
        if options.warm:
            return again(name, device, options.quick)
        return figures(name, device, effort, options.quick, modes_of(options), waits=options.together)

    return int(print_figures(device, options.only.split(",") if options.only else list(CASES), measured))


def main() -> int:
    options = arguments()
    if options.in_process:
        return run_device(options)
    quick = ["--quick"] * options.quick
    flags = [*quick, *(["--only", options.only] if options.only else [])]
    modes = ["--modes", options.modes] if options.modes else []
    devices = implementations(options.device, options.implementation)
    names = options.only.split(",") if options.only else list(CASES)
    with caches() as variables:
        if options.together:
            # What is compiled by itself has a process of its own: nothing else of that model is to be eager there.
            alone = [mode for mode in modes_of(options) if mode == AUTO]
            shared = [",".join(mode for mode in modes_of(options) if mode != AUTO)]
            own = [["--only", n, "--modes", m, *quick, "--together"] for n in names for m in [*shared, *alone] if m]
            runs = [run_in_turns(__file__, devices, own, variables)]
        else:
            runs = [run_in_processes(__file__, devices, [*flags, *modes], variables)]
        if not modes and not options.together:
            runs.append(run_in_processes(__file__, devices, [*flags, "--warm"], variables))
    for name in names if options.packages else ():
        with caches() as variables:  # packages are found by the function's name: one model, one folder
            packages = {**variables, "TORCH_CACHING_PRECOMPILE": "1", "TORCH_LOGS": "-dynamo"}
            one = [*quick, "--only", name, "--warm"]
            with redirect_stdout(StringIO()):
                run_in_processes(__file__, devices, one, packages)
            runs.append(run_in_processes(__file__, devices, one, packages))
    if options.table:
        print_table([row for rows, _ in runs for row in rows])
    return int(any(failed for _, failed in runs))


@contextmanager
def caches() -> Iterator[dict[str, str]]:
    """Variables that keep what is compiled in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"TORCH_WEBGPU_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}


if __name__ == "__main__":
    sys.exit(main())
