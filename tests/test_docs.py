"""What the documentation derives from the sources is current."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_webgpu.config import FLAGS, PREFIX

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torch_webgpu"
WRITTEN_WITH = (2, 13)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GENERATED = {"compatibility.md", "operators.md", "patches.md"}
WIDTH = 120
OLD_LINES = {"adding-an-operator.md": 8}
"""Pages that still have lines over ``WIDTH``, and how many at most."""
OLD_NAMES = {"adding-an-operator.md", "CHANGELOG.md"}
"""Pages that name files which have moved since."""
FOLDERS = "aten|api|compile|compiler|engine|integrations|ir|kernels|plan|runtime|translation|wgsl"
OURS = rf"`((?:(?:src/torch_webgpu/)?(?:{FOLDERS})|tests|benchmarks|scripts|examples)/[\w/]*\w\.(?:py|wgsl|sh))[`:]"


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


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page outside blocks of code, and outside tables where it is generated."""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not (path.name in GENERATED and line.startswith("|")):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_a_document_is_over_120_characters(page: Path) -> None:
    long = [f"{page.name}:{number}" for number, line in prose(page) if len(line) > WIDTH]
    assert len(long) <= OLD_LINES.get(page.name, 0), long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text("utf-8")):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OLD_NAMES], ids=lambda page: page.name)
def test_files_that_a_document_names_are_there(page: Path) -> None:
    named = re.findall(OURS, page.read_text("utf-8"))
    assert [name for name in named if not any((root / name).is_file() for root in (ROOT, PACKAGE))] == []
