"""What a profile tells: its events, and they as a table, a trace, a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from .host_clock import HOST_KINDS, HostEvent
from .profile_collectives import CollectiveEvent, lanes_by_group, summary

NAME_WIDTH = 60
PLOTTED_KERNELS = 20


@dataclass(frozen=True)
class KernelEvent:
    """One dispatch. Times in microseconds since the profile began; sizes in bytes.

    ``name`` is the kernel's, ``operation`` what it is part of: an ATen operator, or several that were fused.
    ``size_bytes``: what the tensors it reads and writes hold, each counted once.
    """

    name: str
    operation: str
    device: int
    start_us: float
    duration_us: float
    size_bytes: int
    grid: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]

    @property
    def bandwidth_gbs(self) -> float:
        """Gigabytes (10⁹) per second."""
        return self.size_bytes / self.duration_us / 1e3 if self.duration_us > 0 else 0.0


@dataclass
class KernelStats:
    """All events of one kernel and operation. Times in microseconds."""

    name: str
    operation: str
    count: int = 0
    gpu_time_us: float = 0.0
    size_bytes: int = 0

    def add(self, event: KernelEvent) -> None:
        self.count += 1
        self.gpu_time_us += event.duration_us
        self.size_bytes += event.size_bytes

    @property
    def label(self) -> str:
        """The operation, and the kernel where it has a name of its own."""
        return self.operation if self.name == self.operation else f"{self.operation} [{self.name}]"

    @property
    def gpu_time_avg_us(self) -> float:
        return self.gpu_time_us / self.count if self.count else 0.0

    @property
    def bandwidth_gbs(self) -> float:
        return self.size_bytes / self.gpu_time_us / 1e3 if self.gpu_time_us > 0 else 0.0


_SORT_KEYS: dict[str, Callable[[KernelStats], Any]] = {
    "gpu_time_total": lambda row: -row.gpu_time_us,
    "gpu_time_avg": lambda row: -row.gpu_time_avg_us,
    "count": lambda row: -row.count,
    "bytes": lambda row: -row.size_bytes,
    "bandwidth": lambda row: -row.bandwidth_gbs,
    "name": lambda row: row.label,
}
_TORCH_SPELLINGS = {
    f"{prefix}{device}_time{total}": "gpu_time_total"
    for prefix in ("", "self_")
    for device in ("device", "cuda", "webgpu", "gpu")
    for total in ("", "_total")
}


def group(events: Iterable[KernelEvent], sort_by: str) -> list[KernelStats]:
    """One row per kernel and operation, the greatest first."""
    key = _SORT_KEYS.get(_TORCH_SPELLINGS.get(sort_by, sort_by))
    if key is None:
        raise ValueError(f"sort_by={sort_by!r}: expected one of {', '.join(_SORT_KEYS)}")
    rows: dict[tuple[str, str], KernelStats] = {}
    for event in events:
        rows.setdefault((event.operation, event.name), KernelStats(event.name, event.operation)).add(event)
    return sorted(rows.values(), key=key)


def table(
    rows: Sequence[KernelStats],
    row_limit: int,
    host_us: dict[str, float],
    wall_us: float,
    clock: str,
    collectives: Sequence[CollectiveEvent] = (),
) -> str:
    """The rows with a head, and what they come to. A negative limit shows all."""
    shown = rows if row_limit < 0 else rows[:row_limit]
    total_us = sum(row.gpu_time_us for row in rows)
    labels = [shortened(row.label) for row in shown]
    width = max([4, *map(len, labels)])
    head = (
        f"{'Name':<{width}}  {'GPU total':>10}  {'GPU %':>6}  {'GPU avg':>10}  {'Calls':>6}  {'Bytes':>10}  {'GB/s':>8}"
    )
    rule = "-" * len(head)
    lines = [rule, head, rule]
    for label, row in zip(labels, shown, strict=True):
        share = 100 * row.gpu_time_us / total_us if total_us else 0.0
        lines.append(
            f"{label:<{width}}  {time_text(row.gpu_time_us):>10}  {share:5.1f}%  {time_text(row.gpu_time_avg_us):>10}  "
            f"{row.count:6d}  {_size(row.size_bytes):>10}  {row.bandwidth_gbs:8.2f}"
        )
    if len(shown) < len(rows):
        lines.append(f"… and {len(rows) - len(shown)} more")
    calls = sum(row.count for row in rows)
    lines += [rule, f"GPU time {time_text(total_us)} in {calls} dispatches; wall time {time_text(wall_us)}. {clock}"]
    parts = [f"{kind} {time_text(host_us[kind])}" for kind in HOST_KINDS if kind in host_us]
    lines.append("Host time: " + ", ".join(parts))
    for what, size_bytes, after_us in summary(collectives):
        steps = ", ".join(f"{step} {time_text(us)}" for step, us in after_us.items())
        lines.append(f"Collectives: {what}, {_size(size_bytes)}; on average after the call: {steps}")
    return "\n".join(lines)


def shortened(label: str, width: int = NAME_WIDTH) -> str:
    return label if len(label) <= width else label[: width - 1] + "…"


def time_text(us: float) -> str:
    """Microseconds in the unit that people would read them in."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3f}{unit}"
    return f"{us:.3f}us"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"


def write_chrome_trace(
    path: str | PathLike[str],
    kernels: Sequence[KernelEvent],
    host: Sequence[HostEvent],
    names: dict[int, str],
    collectives: Sequence[CollectiveEvent] = (),
) -> None:
    """Chrome's trace event format: a process for the host with its threads, one for each GPU, one for collectives.

    ``names``: the GPUs'.
    """
    threads = list(dict.fromkeys(event.thread for event in host))
    events: list[dict[str, Any]] = [_named("process_name", 0, 0, "host")]
    events += [_named("thread_name", 0, n, f"thread {thread}") for n, thread in enumerate(threads)]
    for index, name in names.items():
        events.append(_named("process_name", 1 + index, 0, f"webgpu:{index} {name}"))
        events.append(_named("thread_name", 1 + index, 0, "queue"))
    for at in host:
        name = f"{at.kind} {at.detail}".strip()
        events.append(_complete(name, at.kind, 0, threads.index(at.thread), at.start_us, at.duration_us, {}))
    for kernel in kernels:
        details = {
            "operation": kernel.operation,
            "bytes": kernel.size_bytes,
            "GB/s": round(kernel.bandwidth_gbs, 3),
            "grid": list(kernel.grid),
            "workgroup size": list(kernel.workgroup_size),
        }
        place = (1 + kernel.device, 0, kernel.start_us, kernel.duration_us)
        events.append(_complete(kernel.name, "kernel", *place, details))
    events += _collectives(collectives, 1 + max(names, default=-1) + 1)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _collectives(collectives: Sequence[CollectiveEvent], process: int) -> list[dict[str, Any]]:
    """A row for each group, and more where several of its collectives are underway at once."""
    events = [_named("process_name", process, 0, "collectives")] if collectives else []
    for n, (name, row) in enumerate(lanes_by_group(collectives)):
        events.append(_named("thread_name", process, n, name))
        for at in row:
            details = {
                "bytes": at.size_bytes, "bytes in": at.in_bytes, "bytes out": at.out_bytes, "group": at.group,
                "rank": at.rank, "size": at.size, "transport": at.transport,
                **{f"{step}_us": round(us, 3) for step, us in at.steps}, **({"error": at.error} if at.error else {}),
            }  # fmt: skip
            whole = at.end_us - at.called_us
            events.append(_complete(at.name, "collective", process, n, at.called_us, whole, details))
            for step, begin_us, end_us in at.stages:
                events.append(_complete(step, "collective", process, n, begin_us, end_us - begin_us, {}))
    return events


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    name: str, kind: str, process: int, thread: int, start_us: float, duration_us: float, details: dict[str, Any]
) -> dict[str, Any]:
    place = {"pid": process, "tid": thread, "ts": round(start_us, 3), "dur": round(duration_us, 3)}
    return {"ph": "X", "name": name, "cat": kind, **place, "args": details}


def draw(
    path: str | PathLike[str],
    rows: Sequence[KernelStats],
    kernels: Sequence[KernelEvent],
    host: Sequence[HostEvent],
    collectives: Sequence[CollectiveEvent] = (),
) -> None:
    """A picture: the kernels that took longest, and when the host, the GPUs and collectives were busy.

    The path's suffix is its format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModuleNotFoundError("drawing a profile needs matplotlib: pip install matplotlib") from error
    shown = rows[:PLOTTED_KERNELS]
    busy = _busy(kernels, host, collectives)
    figure = Figure(figsize=(12, 2.5 + 0.3 * max(len(shown), 1) + 0.3 * len(busy)), layout="constrained")
    heights = [max(len(shown), 3), max(len(busy), 3)]
    bars, times = figure.subplots(2, 1, gridspec_kw={"height_ratios": heights})
    drawn = bars.barh([shortened(row.label) for row in shown], [row.gpu_time_us / 1e3 for row in shown])
    bars.bar_label(drawn, [f"{row.count}×, {row.bandwidth_gbs:.1f} GB/s" for row in shown], padding=3)
    bars.margins(x=0.2)
    bars.invert_yaxis()
    bars.set_xlabel("GPU time (ms)")
    bars.set_title("Kernels")
    for n, spans in enumerate(busy.values()):
        times.broken_barh(spans, (n - 0.4, 0.8), facecolors=f"C{n}")
    times.set_yticks(range(len(busy)), list(busy))
    times.invert_yaxis()
    times.set_xlabel("time (ms)")
    times.set_title("When")
    figure.savefig(path)


def _busy(
    kernels: Sequence[KernelEvent], host: Sequence[HostEvent], collectives: Sequence[CollectiveEvent]
) -> dict[str, list[tuple[float, float]]]:
    """When something was going on, by what: (begin, duration) in milliseconds."""
    busy: dict[str, list[tuple[float, float]]] = {}
    for at in sorted(host, key=lambda event: HOST_KINDS.index(event.kind)):
        busy.setdefault(f"host: {at.kind}", []).append((at.start_us / 1e3, at.duration_us / 1e3))
    for kernel in sorted(kernels, key=lambda kernel: kernel.device):
        busy.setdefault(f"webgpu:{kernel.device}", []).append((kernel.start_us / 1e3, kernel.duration_us / 1e3))
    for collective in collectives:
        for step, begin_us, end_us in collective.stages:
            busy.setdefault(f"collectives: {step}", []).append((begin_us / 1e3, (end_us - begin_us) / 1e3))
    return busy
