"""What makes a step late on the host: flushes, plans made anew, uploads, waits and fallbacks, by the program's lines.

``torch.webgpu.profile`` shows it of what it measures, and ``TORCH_WEBGPU_DEBUG=host`` of a whole process at its end.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_webgpu.config import is_printed, print_stage
from torch_webgpu.engine.record import at_first_use, engine

from .host_clock import HOST_KINDS, HostClock, HostEvent, HostObserver
from .profile_report import shortened, time_text

SUMMED_KINDS = tuple(kind for kind in HOST_KINDS if kind not in ("python", "record"))
"""All but the program itself."""
WITHOUT_DETAIL = ("encode", "submit")
"""Those whose details say what is done, not why."""
WHAT_WIDTH = 72
PRINTED_ROWS = 30
MANY_FLUSHES = 100
"""Of an eager program of some steps."""


@dataclass
class HostCost:
    """All events of one kind for one reason, brought about by one line. ``self_us``: without those of other rows."""

    kind: str
    detail: str
    line: str
    count: int = 0
    self_us: float = 0.0


class HostCosts:
    """The sums of events as they end, from any thread."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], HostCost] = {}

    def add(self, event: HostEvent) -> None:
        if event.kind in SUMMED_KINDS:
            key = (event.kind, "" if event.kind in WITHOUT_DETAIL else event.detail, event.line)
            row = self.rows.get(key) or self.rows.setdefault(key, HostCost(*key))
            row.count += 1
            row.self_us += event.self_us

    def sorted(self) -> list[HostCost]:
        """What took longest first."""
        return sorted(self.rows.values(), key=lambda row: -row.self_us)


def group(events: Iterable[HostEvent]) -> list[HostCost]:
    """Their sums, what took longest first."""
    costs = HostCosts()
    for event in events:
        costs.add(event)
    return costs.sorted()


def table(rows: Sequence[HostCost], row_limit: int) -> str:
    """The rows with a head, and sums by kind. A negative limit shows all."""
    shown = rows if row_limit < 0 else rows[:row_limit]
    names = [shortened(f"{row.kind} {row.detail}".strip(), WHAT_WIDTH) for row in shown]
    what = max([4, *map(len, names)])
    where = max([4, *(len(row.line) for row in shown)])
    head = f"{'What':<{what}}  {'Line':<{where}}  {'Times':>6}  {'Total':>10}  {'Average':>10}"
    rule = "-" * len(head)
    lines = [rule, head, rule]
    for name, row in zip(names, shown, strict=True):
        times = f"{time_text(row.self_us):>10}  {time_text(row.self_us / row.count):>10}"
        lines.append(f"{name:<{what}}  {row.line or '–':<{where}}  {row.count:6d}  {times}")
    if len(shown) < len(rows):
        lines.append(f"… and {len(rows) - len(shown)} more")
    sums = []
    for kind in SUMMED_KINDS:
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            total_us = sum(row.self_us for row in of_kind)
            sums.append(f"{kind} {sum(row.count for row in of_kind)}× {time_text(total_us)}")
    return "\n".join([*lines, rule, "Host: " + (", ".join(sums) or "nothing was flushed, read or written")])


def advice(rows: Sequence[HostCost], seconds: float) -> str:
    """What may help an eager program that flushed often in this time and seldom waited for the GPU; "" for others."""
    flushes = sum(row.count for row in rows if row.kind == "flush")
    waited_us = sum(row.self_us for row in rows if row.kind == "wait")
    if flushes < MANY_FLUSHES or waited_us > 0.5e6 * seconds or is_compiling():
        return ""
    return (
        f"\n{flushes} flushes, and the GPU was waited for in {waited_us / 1e4 / seconds:.0f} % of the time: the host "
        "may be what takes long. TORCH_WEBGPU_AUTO_COMPILE=1, or torch.compile, records a step once"
    )


def is_compiling() -> bool:
    """Whether modules compile by themselves. What does so is loaded where it is turned on."""
    automatic = sys.modules.get("torch_webgpu.compile.automatic")
    return automatic is not None and automatic.current() is not None


def watch_process() -> None:
    """Begins to sum up what the host does on all devices, and prints it when the process ends."""
    costs, start = HostCosts(), time.monotonic()
    clock = HostClock(costs.add)
    for device in engine().devices:
        HostObserver(device, clock).install()

    def report() -> None:
        rows = costs.sorted()
        text = table(rows, PRINTED_ROWS) + advice(rows, time.monotonic() - start)
        print_stage("host", "what the host did", text)

    atexit.register(report)


def register() -> None:
    """Watches the process from the device's first use on, if ``TORCH_WEBGPU_DEBUG`` asks for it."""
    if is_printed("host") and watch_process not in at_first_use:
        at_first_use.append(watch_process)
