"""How a duration is measured on any torch device, and how a result is written down.

The clock is the host's. A measurement queues the work many times over and waits once, at the end, so that it sees what
a program sees; the repeats then give a median with its minimum and maximum. Nothing is measured before it has run long
enough to have warmed up (compiled kernels, filled pools, raised clocks). CPU fallbacks are counted with every figure:
one that has any says nothing about the device.

A device that records before it runs need not compute what nobody can see. So every result is alive when its batch is
submitted: small ones are kept for a while, large ones submitted one by one.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

Work = Callable[[], Any]


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds of warm-up, repeats, and seconds that one repeat should take at least."""

    warm_up_s: float = 0.5
    repeats: int = 7
    repeat_s: float = 0.2


QUICK = Effort(warm_up_s=0.1, repeats=3, repeat_s=0.05)


@dataclass(frozen=True)
class Timing:
    """Seconds that the work takes once: median, minimum and maximum over the repeats, each of so many ``calls``."""

    median_s: float
    min_s: float
    max_s: float
    calls: int


@dataclass(frozen=True)
class Device:
    """A torch device and how to wait for it."""

    device: torch.device
    name: str

    @staticmethod
    def of(text: str) -> Device:
        """The device by name; the webgpu backend loads by itself only where it is installed."""
        if text.startswith("webgpu"):
            importlib.import_module("torch_webgpu").register()
        device = torch.device(text)
        return Device(device, _device_name(device))

    def synchronize(self) -> None:
        """Wait until all the work queued so far is done."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize(self.device)

    def submit(self) -> None:
        """Send what is recorded on its way, on a device that records; don't wait."""
        flush = getattr(getattr(torch, self.device.type), "flush_batch", None)
        if flush is not None:
            flush()

    def wake(self) -> None:
        """Keep a GPU busy until its clocks are up: one that was asked for little is several times slower at first."""
        if is_slow(self):
            return
        square, kept = torch.ones(4096, 4096, device=self.device), None
        deadline = time.perf_counter() + WAKE_S
        while time.perf_counter() < deadline:
            for _ in range(4):
                kept = square @ square
                self.submit()
            self.synchronize()
        del kept

    def fallbacks(self) -> int:
        """How often the CPU has stood in for the device so far."""
        stats = getattr(getattr(torch, self.device.type), "fallback_stats", dict)()
        return sum(stats.values())

    @property
    def memory_bytes(self) -> int:
        """What the device has, or a cautious guess where it does not say."""
        module = getattr(torch, self.device.type)
        try:
            told = int(module.get_device_properties(self.device).total_memory)
        except (AttributeError, RuntimeError, TypeError):
            told = 0
        return told or 8 << 30  # WebGPU does not say


def is_slow(device: Device) -> bool:
    """A processor, or a GPU that a processor imitates."""
    name = device.name.lower()
    return device.device.type == "cpu" or any(word in name for word in ("llvmpipe", "lavapipe", "swiftshader", "basic"))


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return f"{platform.processor() or platform.machine()} ({torch.get_num_threads()} threads)"
    return str(getattr(torch, device.type).get_device_name(device))


WAKE_S = 0.25

KEPT = 256
"""How many results of small work stay alive: more than a batch holds."""


def measure(
    work: Work,
    device: Device,
    effort: Effort,
    *,
    host_only: bool = False,
    small: bool = False,
    keep_last: int = 0,
    ahead: int = sys.maxsize,
) -> Timing:
    """Time ``work``, which returns its result.

    With ``host_only`` the clock stops before each wait: what the calls cost the program's thread. ``small`` results, or
    the last so many, are kept and left to the device's own batching; others are submitted with each call. ``ahead``:
    calls between two waits, where a device that holds back a program which is too far ahead would do so otherwise.
    """
    kept: deque[Any] = deque(maxlen=KEPT if small else keep_last)

    def keep() -> None:
        kept.append(work())

    def submit() -> None:
        result = work()
        device.submit()
        del result

    return _measure(keep if small or keep_last else submit, device, effort, host_only, ahead)


def _measure(work: Work, device: Device, effort: Effort, host_only: bool, ahead: int) -> Timing:
    calls = _calls_in(work, device, effort)
    if not host_only:
        device.wake()
    times = []
    for _ in range(effort.repeats):
        elapsed_s = 0.0
        for done in range(0, calls, ahead):
            device.synchronize()
            start = time.perf_counter()
            for _ in range(min(ahead, calls - done)):
                work()
            if host_only:
                elapsed_s += time.perf_counter() - start
                device.synchronize()
            else:
                device.synchronize()
                elapsed_s += time.perf_counter() - start
        times.append(elapsed_s / calls)
    return Timing(statistics.median(times), min(times), max(times), calls)


def _calls_in(work: Work, device: Device, effort: Effort) -> int:
    """Warm up, and find how many calls fill a repeat.

    Each number of calls is tried twice and the faster time counts: the first may have compiled.
    """
    calls, deadline = 1, time.perf_counter() + effort.warm_up_s
    while True:
        elapsed = min(_seconds(work, device, calls) for _ in range(2))
        wanted = max(1, round(min(2 * calls, calls * effort.repeat_s / elapsed)))
        if wanted <= 1.5 * calls and time.perf_counter() >= deadline:
            return wanted
        calls = wanted


def _seconds(work: Work, device: Device, calls: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    device.synchronize()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Kernels:
    """How many kernels ran, and the microseconds they kept the GPU busy."""

    count: int
    gpu_us: float


def kernels(work: Work, device: Device) -> Kernels | None:
    """What one execution of ``work``, which has run before, takes on the GPU; None for a processor."""
    work()
    device.synchronize()
    if device.device.type == "webgpu":
        with torch.webgpu.profile() as seen:  # type: ignore[attr-defined]
            result = work()
            device.synchronize()
        del result
        return Kernels(len(seen.events), sum(event.duration_us for event in seen.events))
    if device.device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        result = work()
        device.synchronize()
    del result
    events = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return Kernels(len(events), sum(event.device_time for event in events))


@dataclass(frozen=True)
class Result:
    """One figure: ``value`` in ``unit`` with the extremes of the repeats, and what was measured (``parameters``)."""

    benchmark: str
    value: float
    unit: str
    low: float
    high: float
    calls: int
    parameters: dict[str, Any] = field(default_factory=dict)


def duration(name: str, timing: Timing, *, per: int = 1, **parameters: Any) -> Result:
    """The time of one execution, or of one of its ``per`` parts, in microseconds."""
    times = (timing.median_s, timing.min_s, timing.max_s)
    median, low, high = (1e6 * seconds / per for seconds in times)
    return Result(name, median, "us", low, high, timing.calls * per, parameters)


def rate(name: str, amount: float, unit: str, timing: Timing, **parameters: Any) -> Result:
    """``amount`` (bytes, floating-point operations) in a second, in ``unit``: GB/s or TFLOPS."""
    scale = {"GB/s": 1e9, "TFLOPS": 1e12}[unit]
    median, low, high = (amount / s / scale for s in (timing.median_s, timing.max_s, timing.min_s))
    return Result(name, median, unit, low, high, timing.calls, parameters)


def environment(device: Device) -> dict[str, Any]:
    """What a figure is worth nothing without."""
    return {
        "device": str(device.device),
        "device_name": device.name,
        "implementation": _implementation(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _implementation(device: Device) -> str:
    """Whose WebGPU it is; empty for other devices."""
    if device.device.type != "webgpu":
        return ""
    return str(torch.webgpu.get_device_properties(device.device).implementation)  # type: ignore[attr-defined]


def as_json(result: Result, device: Device, fallbacks: int) -> str:
    """One line: the environment, the figure, and how many CPU fallbacks it took."""
    row = {**environment(device), **asdict(result), "fallbacks": fallbacks}
    return json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})


def print_figures(device: Device, names: Sequence[str], figures: Callable[[str], Iterator[Result]]) -> bool:
    """Prints the figures of each benchmark as JSON lines; whether one of them failed, which costs only its own."""
    failed = False
    for name in names:
        fallbacks = device.fallbacks()
        try:
            for result in figures(name):
                print(as_json(result, device, device.fallbacks() - fallbacks), flush=True)
                fallbacks = device.fallbacks()
        except (RuntimeError, TypeError, ImportError) as error:
            print(f"{device.device} {name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = True
    return failed


def run_in_processes(
    script: str, devices: Sequence[str], flags: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[dict[str, Any]], bool]:
    """The rows of ``script`` for each device by itself, printed as they come, and whether one of them failed.

    ``variables`` are added to the environment. PyTorch's autograd knows one accelerator per process, so CUDA's backward
    passes fail once another is registered (https://github.com/pytorch/pytorch/issues/161129). ``--in-process`` tells
    the script that it is the only one.
    """
    rows, failed = [], False
    for device in devices:
        with _started(script, device, flags, variables) as process:
            assert process.stdout is not None
            rows += _printed(process.stdout)
        failed |= process.returncode != 0
    return rows, failed


READY = "ready"


def run_in_turns(
    script: str, devices: Sequence[str], runs: Sequence[Sequence[str]], variables: Mapping[str, str]
) -> tuple[list[dict[str, Any]], bool]:
    """As :func:`run_in_processes`, of one process for each list of flags in ``runs``: those of a device are all
    prepared at the same time, up to :func:`wait_for_turn`, and go on one after the other, when all are.
    """
    rows, failed = [], False
    for device in devices:
        processes = [_started(script, device, flags, variables, stdin=subprocess.PIPE) for flags in runs]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # READY, or the end of one that failed
        for process in processes:
            lines, _ = process.communicate(READY + "\n")
            rows += _printed(lines.splitlines(keepends=True))
            failed |= process.returncode != 0
    return rows, failed


def wait_for_turn() -> None:
    """Where all is prepared, in a process of :func:`run_in_turns`."""
    print(READY, flush=True)
    sys.stdin.readline()


def _started(
    script: str, entry: str, flags: Sequence[str], variables: Mapping[str, str], stdin: int | None = None
) -> subprocess.Popen[str]:
    device, _, implementation = entry.partition("@")
    # Loaded by `Device.of` where it is the one that is measured, and nowhere else.
    own = {**os.environ, **variables, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if implementation:
        own["TORCH_WEBGPU_IMPLEMENTATION"] = implementation
    command = [sys.executable, str(Path(script).resolve()), "--in-process", "--device", device, *flags]
    return subprocess.Popen(command, env=own, stdin=stdin, stdout=subprocess.PIPE, text=True)


def _printed(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of JSON lines, which are printed as they come."""
    rows = []
    for line in lines:
        print(line, end="", flush=True)
        rows.append(json.loads(line))
    return rows


def implementations(devices: Sequence[str] | None, names: Sequence[str] | None) -> list[str]:
    """The devices (webgpu where none is named), webgpu once for each WebGPU implementation: ``webgpu@dawn``."""
    found: list[str] = []
    for device in devices or ["webgpu"]:
        found += [f"{device}@{name}" for name in names] if names and device.startswith("webgpu") else [device]
    return found


def print_table(rows: list[dict[str, Any]]) -> None:
    """A row for each figure, a column for each device, on standard error; through rich where it is installed."""
    devices = list(dict.fromkeys(_device_of(row) for row in rows))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cell = f"{row['value']:.4g} ({row['low']:.4g}–{row['high']:.4g})"
        cells.setdefault((_label(row), row["unit"]), {})[_device_of(row)] = cell
    body = [[*key, *(found.get(device, "") for device in devices)] for key, found in cells.items()]
    print_rows(["benchmark", "unit", *devices], body)


def _device_of(row: dict[str, Any]) -> str:
    name = row["implementation"]
    return f"{row['device']} ({row['device_name']}{', ' if name else ''}{name})"


def _label(row: dict[str, Any]) -> str:
    parameters = ", ".join(f"{key}={value}" for key, value in row["parameters"].items())
    return f"{row['benchmark']} [{parameters}]" if parameters else row["benchmark"]


def print_rows(header: list[str], body: list[list[str]]) -> None:
    """A table on standard error."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        for row in [header, *body]:
            cells = (f"{cell:40}" if index == 0 else f"{cell:>24}" for index, cell in enumerate(row))
            print(*cells, sep="  ", file=sys.stderr)
        return
    table = Table(*header)
    for row in body:
        table.add_row(*map(escape, row))
    # A file has no width of its own; 80 columns would break every cell.
    Console(stderr=True, width=None if sys.stderr.isatty() else 180).print(table)
