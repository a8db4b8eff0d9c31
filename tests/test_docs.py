"""What the documentation derives from the sources is current."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_webgpu.config import FLAGS, PREFIX

ROOT = Path(__file__).parents[1]
WRITTEN_WITH = (2, 13)


def test_the_generated_pages_are_current() -> None:
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version != WRITTEN_WITH:
        pytest.skip(f"docs/operators.md lists the operators of PyTorch {WRITTEN_WITH}; this one has others")
    command = [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_page_on_plans_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plans.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
    assert (tmp_path / "step.npz").exists()


def test_the_page_on_the_environment_names_every_flag() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "environment.md").read_text("utf-8"), re.MULTILINE)
    assert {row for row in rows if row.startswith(PREFIX)} >= {PREFIX + name for name in FLAGS}


def test_the_table_of_performance_is_a_row_for_each_workload() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "h200.json").read_text("utf-8"))
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    table = page[page.index("<!-- begin h200.json -->") : page.index("<!-- end h200.json -->")]
    assert results["device"] in table
    assert results["date"] in table
    assert re.findall(r"^\| ([^|]*\d[^|]*) \|", table, re.MULTILINE) == [row["name"] for row in results["workloads"]]
