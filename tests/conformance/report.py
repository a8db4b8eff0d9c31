"""The table at the end of a conformance run: a pytest plugin, which works on the controller of pytest-xdist as well.

Tests hand their result over as the user property ``conformance``, a dictionary of plain values.
"""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

PROPERTY = "conformance"
OUTCOMES = ("passed", "failed", "xfailed", "xpassed", "skipped")


class ConformanceReport:
    """Collects results as they come in, then prints and writes them."""

    def __init__(self, json_path: str | None = None) -> None:
        self.json_path = json_path
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = dict(report.user_properties).get(PROPERTY)
        if report.when == "call" and row is not None:
            self.rows.append({**row, "outcome": _outcome(report)})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.rows:
            return
        terminalreporter.section("conformance with CPU PyTorch")
        for line in table(self.rows):
            terminalreporter.write_line(line)
        if self.json_path:
            Path(self.json_path).write_text(json.dumps(as_json(self.rows), indent=1) + "\n")
            terminalreporter.write_line(f"written to {self.json_path}")


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    # A strict expected failure that passes is reported as a plain failure with this text.
    return "xpassed" if report.failed and "[XPASS(strict)]" in str(report.longrepr) else report.outcome


def fallbacks(rows: list[dict[str, Any]]) -> Counter[str]:
    """CPU fallbacks of the whole run, by operator."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row["fallbacks"])
    return total


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines: a row for each kind of check, then the operators that did not pass, then the fallbacks."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    ops: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_kind[row["kind"]][row["outcome"]] += 1
        by_kind[row["kind"]]["samples"] += row["samples"]
        ops[row["op"]][row["outcome"]] += 1
    columns = [outcome for outcome in OUTCOMES if any(counts[outcome] for counts in ops.values())]
    lines = ["".join([f"{'':12}", *(f"{c:>10}" for c in columns), f"{'samples':>10}"])]
    for kind, counts in sorted(by_kind.items()):
        lines.append("".join([f"{kind:12}", *(f"{counts[c]:>10}" for c in columns), f"{counts['samples']:>10}"]))
    whole = [op for op, counts in ops.items() if set(counts) <= {"passed", "skipped"}]
    lines.append(f"operators: {len(whole)} of {len(ops)} pass everything ({100 * len(whole) / len(ops):.1f} %)")
    for op in sorted(set(ops) - set(whole)):
        counts = ops[op]
        lines.append(f"  {op:50}" + ", ".join(f"{counts[c]} {c}" for c in OUTCOMES if counts[c]))
    fell_back = fallbacks(rows)
    lines.append(f"CPU fallbacks: {sum(fell_back.values())}")
    lines += [f"  {op:50}{count:>8}" for op, count in fell_back.most_common()]
    return lines


def as_json(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The run as plain data: ``ops[op][kind][dtype]`` is the outcome."""
    import torch

    ops: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        ops[row["op"]][row["kind"]][row["dtype"]] = row["outcome"]
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "counts": Counter(row["outcome"] for row in rows),
        "fallbacks": fallbacks(rows),
        "ops": ops,
    }
