"""What works and what is missing: ``python -m tests.conformance --ops 'conv|pool' --dtypes f32,i64``.

Runs PyTorch's operator database on the device in worker processes, so that an operator that crashes or hangs costs
no more than itself, and prints a line for each operator and a summary.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import report

if TYPE_CHECKING:
    from .trials import Result

SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "u8": "uint8"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=os.environ.get("TORCH_WEBGPU_TEST_DEVICE", "webgpu"))
    parser.add_argument("--ops", default="", metavar="REGEX", help="operators whose full name matches (searched)")
    parser.add_argument("--seed-ops", action="store_true", help="only the operators of the seed lists")
    parser.add_argument("--dtypes", default="f32", help="comma-separated, or 'all' (default f32)")
    parser.add_argument("--kinds", default="forward,backward", help="forward,inplace,out,backward,error, or 'all'")
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="samples of each operator (default 4)")
    parser.add_argument(
        "--layouts", action="store_true", help="also transposed, sliced, expanded, 0-dim, empty and mixed inputs"
    )
    parser.add_argument("--native", action="store_true", help="a CPU fallback is a failure")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes (default 1)")
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="S", help="seconds for one operator and kind (default 60)"
    )
    parser.add_argument("--json", metavar="PATH", help="write the results there")
    parser.add_argument("-v", "--verbose", action="store_true", help="every failing sample, not just the first")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    os.environ["TORCH_WEBGPU_TEST_DEVICE"] = options.device
    from .seed_ops import SEED_OPINFOS
    from .trials import ALL_LAYOUTS, DTYPES, KINDS, Effort, opinfos, trials
    from .workers import run_all

    names = [n for n in opinfos() if re.search(options.ops, n) and (n in SEED_OPINFOS or not options.seed_ops)]
    dtypes = tuple(DTYPES) if options.dtypes == "all" else tuple(SHORT.get(d, d) for d in options.dtypes.split(","))
    kinds = KINDS if options.kinds == "all" else tuple(options.kinds.split(","))
    effort = Effort(options.samples, ALL_LAYOUTS if options.layouts else ())
    rows = []
    for result in run_all(list(trials(names, kinds, dtypes)), effort, options.jobs, options.timeout):
        failures = list(result.failures)
        if options.native and result.fallbacks:
            failures.append(f"not native: {result.fallbacks}")
        rows.append(row(result, failures))
        print_result(result, failures, options.verbose)
    print(*report.table(rows), sep="\n") if rows else print("no operator matches")
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(rows), indent=1) + "\n")
    return int(any(r["outcome"] == "failed" for r in rows))


def row(result: Result, failures: list[str]) -> dict[str, Any]:
    """A result as :mod:`.report` takes it."""
    outcome = "failed" if failures else "passed"
    return {**asdict(result.trial), "samples": result.samples, "fallbacks": result.fallbacks, "outcome": outcome}


def print_result(result: Result, failures: list[str], verbose: bool) -> None:
    trial, shown = result.trial, failures if verbose else failures[:1]
    note = f"  fallbacks {result.fallbacks}" if result.fallbacks else ""
    print(
        f"{'FAIL' if failures else 'ok':5}{trial.kind:9}{trial!s:50}{note}",
        *(f"       {f}" for f in shown),
        sep="\n",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
