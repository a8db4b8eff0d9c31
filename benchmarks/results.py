"""A file of results from the JSON lines of ``compile.py``, for the table of docs/performance.md:

    python benchmarks/compile.py --device webgpu --device cuda > run.jsonl
    python benchmarks/results.py run.jsonl > benchmarks/results/h200.json
    make docs

With ``--into benchmarks/results/h200.json`` the figures of the run replace those of the file, and the others stay.

A workload is a model's step: milliseconds, median and least, in eager mode and compiled, on webgpu and on CUDA; and the
sum of what the compiled step's kernels take on the GPU. What was not measured is left out. Of several runs of a model
the last one counts. A run with CPU fallbacks is refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def results(rows: Iterable[Row], commit: str) -> Row:
    """The file's contents. ValueError for figures that are not of one table."""
    rows = list(rows)
    steps = [row for row in rows if row["benchmark"] == "step"]
    if fallen := [row["parameters"]["model"] for row in steps if row["fallbacks"]]:
        raise ValueError(f"operators ran on the CPU in {', '.join(fallen)}")
    devices = {row["device_name"] for row in steps}
    dates = {row["date"] for row in steps}
    if len(devices) != 1 or len(dates) != 1:
        raise ValueError(f"one device and one date are a table, not {sorted(devices)} and {sorted(dates)}")
    workloads: dict[str, Row] = {}
    on_gpu = [row for row in rows if row["benchmark"] == "on the GPU" and row["parameters"]["mode"] == "compiled"]
    for row in (*steps, *on_gpu):
        about, side = row["parameters"], row["device"].partition(":")[0]
        figure = {"median": milliseconds(row["value"])}
        if row["benchmark"] == "step":
            figure["min"] = milliseconds(row["low"])
        what = about["mode"] if row["benchmark"] == "step" else "kernels"
        workloads.setdefault(about["model"], {"name": about["model"]})[f"{side}_{what}"] = figure
    return {
        "device": devices.pop(),
        "date": dates.pop(),
        "commit": commit,
        "versions": versions(steps),
        "unit": "ms a step",
        "workloads": list(workloads.values()),
    }


def merged(found: Row, earlier: Row) -> Row:
    """``earlier`` with the figures of ``found`` in place of its own. ValueError if another device, or other versions,
    were measured.
    """
    if any(found[key] != earlier[key] for key in ("device", "versions", "unit")):
        raise ValueError(f"the file is of {earlier['device']}, {earlier['versions']}, and not of what ran")
    now = {row["name"]: row for row in found["workloads"]}
    kept = [{**row, **now.pop(row["name"], {})} for row in earlier["workloads"]]
    return {**found, "workloads": [*kept, *now.values()]}


def milliseconds(us: float) -> float:
    """To three digits."""
    return float(f"{us / 1e3:.3g}")


def versions(rows: Iterable[Row]) -> dict[str, str]:
    """What ran: PyTorch, and whose WebGPU."""
    found: dict[str, set[str]] = {"torch": set(), "webgpu": set()}
    for row in rows:
        found["torch"].add(row["torch"])
        if row["implementation"]:
            found["webgpu"].add(row["implementation"])
    return {name: ", ".join(sorted(values)) for name, values in found.items() if values}


def current_commit() -> str:
    """That of this checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, help="JSON lines of benchmarks/compile.py")
    parser.add_argument("--commit", help="what was measured (default: this checkout's)")
    parser.add_argument("--into", type=Path, metavar="FILE", help="results whose other figures stay as they are")
    options = parser.parse_args()
    lines = [line for file in options.files for line in file.read_text("utf-8").splitlines()]
    try:
        found = results(map(json.loads, lines), options.commit or current_commit())
        if options.into:
            found = merged(found, json.loads(options.into.read_text("utf-8")))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
