"""Hours in one process: ``python benchmarks/soak.py --minutes 30 --threads 2``.

Threads run random little programs (``_soak_programs.py``) on the device, each of which is now and then run on the CPU
too and compared. There are ``--programs`` of each kind: once all have run, what is new is new for a reason. Every few
seconds all threads stop between two programs, and what is left is looked at: nothing may be recorded, live bytes must
be what they were, the pool and the process must not grow, and what the threads have carried along from the start must
still be what the CPU has.

Exit status 0 if everything was as it should be, 1 otherwise. ``--replay NAME:SEED`` runs one program again by itself.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import io
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import psutil
import torch
from _soak_programs import PROGRAMS, Carried, mismatch

MIB = 1 << 20
FAILURES_SHOWN = 20


@dataclass(frozen=True)
class Bounds:
    """What memory may do after the warm-up. RSS is compared by the medians of the first and the last third.

    The pool keeps what it has within a quarter, and 64 MiB, of the most that was in use at one time. Programs that are
    new make kernels that are new: a software adapter compiles them to machine code in the process, some 3 MB each,
    until the pipeline cache has as many as it keeps.
    """

    pooled_bytes: int = 64 * MIB
    resident_growth_bytes_an_hour: int = 64 * MIB
    resident_noise_bytes: int = 16 * MIB
    resident_bytes_a_pipeline: int = 4 * MIB


@dataclass(frozen=True)
class Sample:
    """What was seen while all threads stood still."""

    seconds: float
    episodes: int
    allocated: int
    peak: int
    reserved: int
    resident: int
    pending: int
    pipelines: int


@dataclass
class Report:
    """What happened so far. The threads add to it under ``lock``."""

    episodes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    largest_error: float = 0.0
    most_pending: int = 0
    failures: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, text: str) -> None:
        with self.lock:
            self.failures.append(text)


class Gate:
    """Lets threads through, or has them all wait outside while somebody looks."""

    def __init__(self, threads: int) -> None:
        self._condition = threading.Condition()
        self._closed = False
        self._running = threads

    def pass_through(self) -> None:
        """Called between two programs; waits while the gate is closed."""
        with self._condition:
            if not self._closed:
                return
            self._running -= 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._closed)
            self._running += 1

    def leave(self) -> None:
        with self._condition:
            self._running -= 1
            self._condition.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._condition:
                self._closed = False
                self._condition.notify_all()


class Worker(threading.Thread):
    """Runs random programs until it is told to stop, and one step of its own carried state before each."""

    def __init__(
        self, index: int, options: argparse.Namespace, programs: list[tuple[str, int]], report: Report, gate: Gate
    ) -> None:
        super().__init__(name=f"soak-{index}", daemon=True)
        self.rng = random.Random(options.seed * 1000 + index)
        self.device = torch.device(options.device)
        self.compare = options.compare
        self.programs = programs
        self.report, self.gate, self.stopping = report, gate, threading.Event()
        seed = self.rng.getrandbits(32)
        self.carried, self.expected = Carried(self.device, seed), Carried(torch.device("cpu"), seed)
        self.reference = Reference()

    def run(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self.stopping.is_set():
                self.gate.pass_through()
                self.carried.step()
                self.expected.step()
                self.episode(*self.rng.choice(self.programs))
        finally:
            self.gate.leave()
            self.reference.close()

    def episode(self, name: str, seed: int) -> None:
        """One program on the device; compared with the CPU's results with probability ``compare``."""
        try:
            ours = PROGRAMS[name](random.Random(seed), self.device)
            compared = self.rng.random() < self.compare
            error = mismatch(ours, self.reference.results(name, seed)) if compared else None
        except Exception:  # noqa: BLE001 whatever it is, it is a finding
            self.report.fail(f"{name}:{seed} raised\n{traceback.format_exc()}")
            return
        with self.report.lock:
            self.report.episodes[name] += 1
            if error is not None:
                self.report.compared += 1
                self.report.largest_error = max(self.report.largest_error, error)

    def drift(self) -> None:
        """Compares what was carried along since the start; to be called while the thread stands still."""
        try:
            mismatch(self.carried.results(), self.expected.results())
        except AssertionError as error:
            self.report.fail(f"{self.name}: drift after {self.carried.steps} steps: {error}")


class Reference:
    """Runs programs on the CPU, in a process of its own: what PyTorch's CPU kernels cache is not our memory."""

    def __init__(self) -> None:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # it needs no device
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,))

    def results(self, name: str, seed: int) -> list[torch.Tensor]:
        return torch.load(io.BytesIO(self._pool.submit(on_cpu, name, seed).result()))

    def close(self) -> None:
        self._pool.shutdown()


def on_cpu(name: str, seed: int) -> bytes:
    """A program's results on the CPU, as a file; tensors would travel through shared memory."""
    file = io.BytesIO()
    torch.save([t.detach() for t in PROGRAMS[name](random.Random(seed), torch.device("cpu"))], file)
    return file.getvalue()


def pending(device: torch.device) -> int:
    count = getattr(getattr(torch, device.type), "get_pending_count", None)
    return count() if count else 0


def look(device: torch.device, seconds: float, report: Report) -> Sample:
    """Takes stock. The threads stand still."""
    gc.collect()
    allocated = peak = reserved = left = pipelines = 0
    if device.type != "cpu":
        module = getattr(torch, device.type)
        module.synchronize()
        left = pending(device)
        allocated, reserved = module.memory_allocated(), module.memory_reserved()
        stats = module.memory_stats()
        peak, pipelines = stats["active_bytes.all.peak"], stats.get("pipelines", 0)
    return_free_memory()
    resident = psutil.Process().memory_info().rss
    return Sample(seconds, report.episodes.total(), allocated, peak, reserved, resident, left, pipelines)


def return_free_memory() -> None:
    """Has the C library give back what it keeps for later: a software adapter's compiler leaves holes in its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def soak(options: argparse.Namespace) -> Report:
    """Runs the threads for as long as asked, looking at everything every ``interval`` seconds."""
    device, report, gate = torch.device(options.device), Report(), Gate(options.threads)
    names, rng = options.only.split(",") if options.only else list(PROGRAMS), random.Random(options.seed)
    programs = [(name, rng.getrandbits(32)) for name in names for _ in range(options.programs)]
    workers = [Worker(index, options, programs, report, gate) for index in range(options.threads)]
    duration, start = 60 * options.minutes, time.monotonic()
    for worker in workers:
        worker.start()
    with progress(duration) as show:
        while (elapsed := time.monotonic() - start) < duration and len(report.failures) < FAILURES_SHOWN:
            watch(device, report, min(options.interval, duration - elapsed))
            with gate.closed():
                for worker in workers:
                    worker.drift()
                report.samples.append(look(device, time.monotonic() - start, report))
            show(report)
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.join()
    return report


def watch(device: torch.device, report: Report, seconds: float) -> None:
    """Waits, with an eye on how much is recorded."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        report.most_pending = max(report.most_pending, pending(device))
        time.sleep(0.01)


def verdict(report: Report, bounds: Bounds, warm_up_s: float, threshold: int) -> list[str]:
    """What was wrong, a line each; empty if nothing was."""
    wrong = list(report.failures)
    left = [sample for sample in report.samples if sample.pending]
    wrong += [f"{s.pending} operations still recorded after a synchronize at {s.seconds:.0f} s" for s in left]
    if report.most_pending > threshold:
        wrong.append(f"{report.most_pending} operations were recorded at once; the threads' batches hold {threshold}")
    steady = [sample for sample in report.samples if sample.seconds >= warm_up_s]
    if len(steady) < 3:
        return [*wrong, f"too short: {len(steady)} samples after the warm-up of {warm_up_s:.0f} s"]
    allocated = {sample.allocated for sample in steady}
    if len(allocated) > 1:
        wrong.append(f"live bytes changed: between {min(allocated)} and {max(allocated)}")
    most = max(steady, key=lambda s: s.reserved - s.peak)
    if most.reserved > most.peak + max(most.peak // 4, bounds.pooled_bytes):
        wrong.append(f"{most.reserved / MIB:.1f} MiB reserved, and never more than {most.peak / MIB:.1f} in use")
    grown = growth_of("resident", steady)
    hours = (steady[-1].seconds - steady[0].seconds) / 3600
    allowed = bounds.resident_noise_bytes + bounds.resident_growth_bytes_an_hour * hours
    allowed += bounds.resident_bytes_a_pipeline * max(0, growth_of("pipelines", steady))
    if grown > allowed:
        wrong.append(f"the process grew by {grown / MIB:.1f} MiB after the warm-up, {allowed / MIB:.1f} are allowed")
    return wrong


def growth_of(name: str, samples: list[Sample]) -> float:
    """How much a number grew from the first third of the samples to the last, by medians."""
    third = max(1, len(samples) // 3)
    first, last = ([getattr(s, name) for s in part] for part in (samples[:third], samples[-third:]))
    return statistics.median(last) - statistics.median(first)


@contextmanager
def progress(duration: float) -> Iterator[object]:
    """A progress bar on standard error: through rich on a terminal that has it, else a line now and then."""

    def line(report: Report) -> str:
        s = report.samples[-1]
        return (
            f"{s.episodes} programs, {report.compared} compared, {len(report.failures)} failures, live "
            f"{s.allocated / MIB:.3f}, pool {s.reserved / MIB:.1f}, process {s.resident / MIB:.0f} MiB, "
            f"{s.pipelines} pipelines"
        )

    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        interactive = False
    else:
        interactive = sys.stderr.isatty()
    if not interactive:
        yield lambda report: print(f"{report.samples[-1].seconds:6.0f} s  {line(report)}", file=sys.stderr, flush=True)
        return
    from rich.console import Console

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=duration)
        yield lambda report: bar.update(task, completed=report.samples[-1].seconds, description=line(report))


def summary(report: Report, wrong: list[str], warm_up_s: float) -> str:
    """The whole run, for people."""
    lines = [f"  {name:<12}{count:8d} programs" for name, count in sorted(report.episodes.items())]
    lines.append(
        f"  {report.compared} compared with the CPU, largest error {report.largest_error:.2g} of what is allowed"
    )
    lines.append(f"  at most {report.most_pending} operations recorded at once")
    steady = [s for s in report.samples if s.seconds >= warm_up_s]
    for name in ("allocated", "reserved", "resident"):
        values = [getattr(s, name) / MIB for s in steady] or [0.0]
        lines.append(f"  {name:<12}{values[0]:9.2f} → {values[-1]:.2f} MiB ({min(values):.2f}–{max(values):.2f})")
    lines.append(f"  pipelines   {steady[0].pipelines:9d} → {steady[-1].pipelines}" if steady else "")
    lines += [f"FAILED: {reason}" for reason in wrong] or ["passed"]
    return "\n".join(lines)


def arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--threads", type=int, default=2, help="threads that compute at once (default 2)")
    parser.add_argument("--device", default="webgpu", metavar="NAME", help="any torch device (default webgpu)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other programs (default 0)")
    parser.add_argument(
        "--programs", type=int, default=12, metavar="N", help="different programs of each kind (default 12)"
    )
    parser.add_argument(
        "--compare", type=float, default=0.5, metavar="P", help="share of programs compared with the CPU"
    )
    parser.add_argument(
        "--interval", type=float, default=10, metavar="S", help="seconds between two looks (default 10)"
    )
    parser.add_argument(
        "--warm-up", type=float, metavar="S", help="seconds until memory must be flat (default: a third of the time)"
    )
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of {','.join(PROGRAMS)}")
    parser.add_argument("--replay", metavar="NAME:SEED", help="run this one program, compare it, and stop")
    parser.add_argument("--json", metavar="PATH", help="write the samples and the verdict there")
    return parser.parse_args(arguments)


def main() -> int:
    options = arguments()
    if options.device.startswith("webgpu"):
        importlib.import_module("torch_webgpu").register()
    if options.replay:
        name, seed = options.replay.split(":")
        results = [PROGRAMS[name](random.Random(int(seed)), torch.device(where)) for where in (options.device, "cpu")]
        print(f"largest error {mismatch(*results):.2g} of what is allowed")
        return 0
    warm_up_s = 60 * options.minutes / 3 if options.warm_up is None else options.warm_up
    report = soak(options)
    wrong = verdict(report, Bounds(), warm_up_s, threshold=64 * options.threads)
    print(summary(report, wrong, warm_up_s))
    if options.json:
        told = {"passed": not wrong, "wrong": wrong, "samples": [asdict(s) for s in report.samples]}
        with open(options.json, "w") as file:
            json.dump({**told, "episodes": report.episodes, "compared": report.compared}, file, indent=1)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
