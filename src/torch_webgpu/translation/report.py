"""What a translation did: which names were answered how, where first, what it cost, what ran on the CPU instead."""

from __future__ import annotations

import atexit
import json
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing import parent_process
from os import PathLike

import torch

from torch_webgpu.aten.dispatch.fallback import fallback_stats

from . import report_page
from .report_data import Call, Figures, how_many
from .session import Session, active
from .table import table

SHOWN_FILES = 10
MIB = 1 << 20


class Report(Figures):
    """The figures, and how they are shown."""

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_html(self) -> str:
        """One page, which needs nothing else."""
        return report_page.page(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a file: a page where the name ends with ``.html``, JSON for ``.json``, the text otherwise."""
        text = {".html": self.to_html, ".json": self.to_json}.get(os.path.splitext(path)[1], self.__str__)()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._calls(), *self._rest()])

    def _head(self) -> list[str]:
        lines = [
            f"translated to {self.device} ({self.adapter})",
            f"  {self.seconds:.1f} s in all; {1e3 * self.seconds_to_enable:.0f} ms to begin, "
            f"{1e3 * self.seconds_rewriting:.0f} ms to rewrite {len(self.files)} "
            f"file{'s' * (len(self.files) != 1)}",
        ]
        if self.peak_bytes is not None:
            lines.append(f"  at most {self.peak_bytes / MIB:,.1f} MiB of device memory in tensors")
        lines += [f"  {answer}: {how_many(names, calls)}" for answer, (names, calls) in self.counts().items()]
        return lines

    def _calls(self) -> list[str]:
        if not self.calls:
            return []
        rows = [("name", "answer", "calls", "ms", "first called")]
        rows += [(c.name, c.answer, f"{c.count}", f"{1e3 * c.seconds:.1f}", c.place) for c in self.calls]
        return ["", *aligned(rows)]

    def _rest(self) -> list[str]:
        lines = [""] if self.fallbacks or self.libraries else []
        if self.fallbacks:
            most = sorted(self.fallbacks.items(), key=lambda entry: -entry[1])
            lines += wrapped("ran on the CPU", [f"{name} {count}×" for name, count in most])
        if self.libraries:
            names = list(self.libraries)
            lines += wrapped("libraries that asked for CUDA and were told that there is none", names)
            lines.append("  to translate one of them as well: " + " ".join(f"--package {name}" for name in names[:3]))
        return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be; the third and fourth hold numbers."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(text.rjust(width) if n in (2, 3) else text.ljust(width) for n, (text, width) in cells).rstrip()
        for cells in (list(enumerate(zip(row, widths))) for row in rows)
    ]


def wrapped(title: str, entries: Sequence[str]) -> list[str]:
    return textwrap.wrap(f"{title}: " + ", ".join(entries), 110, subsequent_indent="  ")


def report(session: Session) -> Report:
    """What ``session`` has done so far."""
    names = table()
    calls = [
        Call(
            name,
            call.answer.value,
            call.count,
            call.seconds,
            relative(call.location),
            names[name].replies[session.target].note if name in names and session.target != "cuda" else "",
        )
        for name, call in session.monitor.calls.items()
    ]
    return Report(
        device=session.target,
        adapter=adapter_name(session.target),
        seconds=time.perf_counter() - session.began,
        seconds_to_enable=session.seconds_to_enable,
        seconds_rewriting=session.translator.seconds,
        files=tuple(map(relative, session.translator.files)),
        packages=tuple(sorted(session.packages.names)),
        calls=tuple(sorted(calls, key=lambda call: -call.count)),
        libraries=dict(session.monitor.libraries),
        fallbacks=fallback_stats() if session.target == "webgpu" else {},
        peak_bytes=peak_bytes(session.target),
    )


def relative(place: str) -> str:
    """A path as seen from here, where that is shorter."""
    here = os.getcwd() + os.sep
    return place.removeprefix(here)


def adapter_name(target: str) -> str:
    """The device's own name."""
    if target == "cpu":
        return torch.backends.cpu.get_cpu_capability()
    name = getattr(getattr(torch, target), "get_device_name", lambda: target)
    return str(name())


def peak_bytes(target: str) -> int | None:
    """The most memory in tensors, where the device tells."""
    peak = getattr(getattr(torch, target), "max_memory_allocated", None)
    return int(peak()) if target != "cpu" and peak is not None else None


VARIABLE = "TORCH_WEBGPU_TRANSLATE_REPORT"
"""Where the report goes at the end of a program, as ``--report-file``; several apart by commas, - for stderr."""


def at_exit(wanted: Sequence[str]) -> None:
    """Prints the report ("-") or writes it to files when this process ends; its workers write none."""
    os.environ.pop(VARIABLE, None)
    begun = active()
    if wanted and begun is not None and parent_process() is None:
        atexit.register(_tell, begun, [path if path == "-" else os.path.abspath(path) for path in wanted])


def asked() -> list[str]:
    """What the environment wants."""
    wanted = os.environ.get(VARIABLE, "").split(",")
    return ["-" if path in ("1", "-") else path for path in wanted if path]


def _tell(session: Session, wanted: Sequence[str]) -> None:
    summary = report(session)
    for path in wanted:
        if path == "-":
            sys.stderr.write(f"\n{summary}\n")
        else:
            summary.save(path)
