"""PyTorch's own device-generic tests on the device: ``python -m tests.pytorch path/to/pytorch/test``.

The folder is the ``test`` folder of a PyTorch checkout, best of the release that is installed; nothing of it is part of
this project. Tests that fail run again on the CPU, so that what fails there as well (another release's expectations, a
missing library) is told apart from what is the device's fault. Tests run in worker processes: one that crashes or hangs
costs no more than itself.

``--distributed``: those of ``torch.distributed`` instead, with a process for each rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from . import distributed
from .names import OUTCOMES_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
FILES = """
    test_torch test_indexing test_view_ops test_type_promotion test_tensor_creation_ops test_reductions test_shape_ops
    test_sort_and_select test_scatter_gather_ops test_binary_ufuncs test_unary_ufuncs test_nn test_autograd test_complex
    test_dlpack test_segment_reductions test_serialization test_numpy_interop test_linalg test_masked test_native_mha
    nn/test_convolution nn/test_pooling nn/test_embedding nn/test_dropout nn/test_multihead_attention
""".split()
Outcomes = dict[str, dict[str, Any]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.pytorch", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the test folder of a PyTorch checkout")
    parser.add_argument("--distributed", action="store_true", help="the tests of several processes")
    parser.add_argument("--files", help="which of its files, without .py, space-separated")
    parser.add_argument("-k", dest="expression", default="", help="pytest's -k: names that contain this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes (default 1)")
    parser.add_argument("--timeout", type=int, metavar="S", help="seconds for one test (default 120; distributed 300)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every outcome there")
    options = parser.parse_args()
    options.timeout = options.timeout or (distributed.LONGEST_TEST_S + 60 if options.distributed else 120)
    return options


def main() -> int:
    options = arguments()
    default = [*distributed.FILES, distributed.SPAWN] if options.distributed else FILES
    files = [f"{name}.py" for name in (default if options.files is None else options.files.split())]
    absent = [name for name in files if not (options.folder / name).is_file()]
    if len(absent) == len(files):
        print(f"none of the files is in {options.folder}: it should be the test folder of a PyTorch checkout")
        return 2
    print(*(f"absent: {name}" for name in absent), sep="\n", end="\n" if absent else "")
    here = [name for name in files if name not in absent]
    ours: Outcomes = {}
    theirs: Outcomes = {}
    for together in (here,) if not options.distributed else distributed.apart(here):
        found = run(options, together, "privateuse1")
        failed = [name for name, one in found.items() if one["outcome"] == "failed"]
        ours |= found
        if failed:
            theirs |= run(options, sorted({name.partition("::")[0] for name in failed}), "cpu", failed)
    verdicts = {name: verdict(found, theirs.get(name)) for name, found in ours.items()}
    print(*report(ours, verdicts), sep="\n")
    if options.json:
        rows = {name: {**found, "verdict": verdicts[name]} for name, found in ours.items()}
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    bad = set(verdicts.values()) & {"failed", "unexpected pass"}
    return int(bool(bad) or not any(v == "passed" for v in verdicts.values()))


def run(options: argparse.Namespace, files: list[str], device: str, only: list[str] | None = None) -> Outcomes:
    """Outcomes by test name on ``device``, of the tests named ``only`` or of all."""
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = Path(scratch) / "outcomes.json"
        command = [
            *(sys.executable, "-m", "pytest", "--noconftest", "-p", "tests.pytorch.plugin", "-c", os.devnull),
            *("--rootdir", ".", "-q", "--tb=short", "--no-header", "-rN", "--disable-warnings", "--show-capture=no"),
            *("-p", "no:cacheprovider", "--continue-on-collection-errors"),
            *("-n", str(options.jobs), "--max-worker-restart", "1000", "--dist", "worksteal"),
            *("--timeout", str(options.timeout), "--timeout-method", "thread", "-k", options.expression, *files),
        ]
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        subprocess.run(
            command,
            cwd=options.folder,
            check=False,
            stdout=None if only is None else subprocess.DEVNULL,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "PYTORCH_TESTING_DEVICE_ONLY_FOR": device,
                "TORCH_WEBGPU_PYTORCH_TESTS_ONLY": "\n".join(only or ()),
                OUTCOMES_VARIABLE: str(outcomes),
                **(distributed.environment(device, Path(scratch), files) if options.distributed else {}),
            },
        )
        if not outcomes.is_file():
            raise SystemExit(f"pytest ended before it ran the tests on {device}")
        return json.loads(outcomes.read_text())


def verdict(found: dict[str, Any], on_cpu: dict[str, Any] | None) -> str:
    """A test's outcome, with failures that the CPU shares set apart."""
    if found["outcome"] == "failed" and on_cpu is not None and on_cpu["outcome"] != "passed":
        return "fails on the CPU, too"
    return found["outcome"]


def report(ours: Outcomes, verdicts: dict[str, str]) -> list[str]:
    """Lines: what is the device's fault, with the message; then a row for each file."""
    columns = ("passed", "failed", "unexpected pass", "expected failure", "fails on the CPU, too", "skipped")
    lines = [""]
    for name, outcome in verdicts.items():
        if outcome in ("failed", "unexpected pass", "not imported"):
            message = ours[name]["message"].splitlines() or [""]
            lines.append(f"{outcome}: {name}\n    {message[0][:200]}")
    by_file: dict[str, Counter[str]] = {}
    for name, outcome in verdicts.items():
        by_file.setdefault(name.partition("::")[0], Counter())[outcome] += 1
    total: Counter[str] = Counter(verdicts.values())
    lines += ["", f"{'file':32}" + "".join(f"{c:>23}" for c in columns)]
    for file, counts in [*sorted(by_file.items()), ("all", total)]:
        lines.append(f"{file:32}" + "".join(f"{counts[c]:>23}" for c in columns))
    return lines


if __name__ == "__main__":
    sys.exit(main())
