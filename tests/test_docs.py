"""What the documentation derives from the sources is current."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from torch_webgpu.config import FLAGS, PREFIX
from torch_webgpu.ir.values import NotAValueError, check_function

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torch_webgpu"
WRITTEN_WITH = (2, 13)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GENERATED = {"compatibility.md", "operators.md"}
WIDTH = 120
FOLDERS = "aten|api|compile|compiler|engine|export|extend|integrations|ir|kernels|plan|runtime|translation|wgsl"
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


def test_what_the_page_on_the_web_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "web.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks), {})
    assert (tmp_path / "any-batch" / "plan.json").exists()
    assert (tmp_path / "my-model" / "index.html").exists()
    assert (tmp_path / "trained" / "plan.json").exists()
    assert (tmp_path / "chat" / "plan.json").exists()


def test_the_page_on_the_environment_names_every_flag() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "environment.md").read_text("utf-8"), re.MULTILINE)
    assert {row for row in rows if row.startswith(PREFIX)} >= {PREFIX + name for name in FLAGS}


def test_the_table_of_performance_is_a_row_for_each_workload() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "h200.json").read_text("utf-8"))
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    table = page[page.index("<!-- begin h200.json -->") : page.index("<!-- end h200.json -->")]
    assert results["device"] in table
    assert results["date"] in table
    names = re.findall(r"^\| ([^|]*) \| [\d–]", table, re.MULTILINE)
    assert sorted(names) == sorted(row["name"] for row in results["workloads"])
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    at = rows[0].index("ratio")
    ratios = [float(row[at]) for row in rows[1:]]
    assert ratios == sorted(ratios), "worst first"
    assert len(ratios) == len(names)


def test_a_run_of_the_benchmark_becomes_a_table(tmp_path: Path) -> None:
    def row(device: str, mode: str, us: float, low: float, **other: object) -> str:
        about = {"benchmark": "step", "parameters": {"model": "a model", "mode": mode}, "date": "2026-11-24"}
        figure = {"value": us, "low": low, "device": device, "device_name": "a GPU", "torch": "2.13"}
        return json.dumps({**about, **figure, "implementation": "dawn" * (device == "webgpu"), "fallbacks": 0, **other})

    run = tmp_path / "run.jsonl"
    lines = [
        row("webgpu", "eager", 3000, 2000),
        row("webgpu", "auto", 2500, 2500),
        row("webgpu:0", "compiled", 2000, 1900),
        row("cuda", "eager", 3000, 3000),
        row("cuda", "eager", 2500, 2500, benchmark="on the GPU"),
        row("webgpu", "compiled", 1500, 1500, benchmark="on the GPU"),
    ]
    run.write_text("\n".join([*lines, json.dumps({"benchmark": "first step"})]), "utf-8")
    script = [sys.executable, str(ROOT / "benchmarks" / "results.py"), str(run), "--commit", "1234567"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    table = runpy.run_path(str(ROOT / "scripts" / "docs.py"))["results_table"](json.loads(done.stdout))
    assert "a GPU, 2026-11-24, commit 1234567; torch 2.13, webgpu dawn; ms a step:" in table
    assert "| a model | 3.0 (min 2.0) | 2.5 | 2.0 | 3.0 | – | 1.50 | 1.5 | – |" in table

    earlier = tmp_path / "earlier.json"
    earlier.write_text(done.stdout, "utf-8")
    other = {"parameters": {"model": "another", "mode": "compiled"}}
    newer = [row("webgpu", "compiled", 1000, 1000), row("webgpu", "compiled", 500, 500, **other)]
    run.write_text("\n".join(newer), "utf-8")
    done = subprocess.run([*script, "--into", str(earlier)], capture_output=True, text=True, timeout=60, check=False)
    workloads = json.loads(done.stdout)["workloads"]
    assert [row["name"] for row in workloads] == ["a model", "another"]
    before = json.loads(earlier.read_text("utf-8"))["workloads"][0]
    assert workloads[0] == {**before, "webgpu_compiled": {"median": 1.0, "min": 1.0}}
    run.write_text(row("webgpu", "compiled", 1000, 1000, torch="2.14"), "utf-8")
    done = subprocess.run([*script, "--into", str(earlier)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "2.13" in done.stderr

    run.write_text(row("webgpu", "eager", 3000, 2000, fallbacks=1), "utf-8")
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "operators ran on the CPU in a model" in done.stderr


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page outside blocks of code, and outside tables where it is generated."""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not (path.name in GENERATED and line.startswith("|")):
            yield number, line


WAYS = ("Pointwise", "Reduction or scan", "Kernel", "Composition")


def quotes(text: str) -> list[tuple[str, list[str]]]:
    """The file that each block names in its first line, and the block's parts."""
    blocks = re.findall(r"```(?:python|wgsl)\n(?:#|//) (\S+)\n(.*?)```", text, re.DOTALL)
    return [(file, block.rstrip("\n").split("\n\n\n")) for file, block in blocks]


def test_the_page_on_operators_has_an_example_for_each_way_and_quotes_the_sources() -> None:
    page = (ROOT / "docs" / "adding-an-operator.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    assert page.count("```") == 2 * (len(quotes(page)) + 1)  # and an error
    for way in WAYS:
        assert quotes(sections[way]), way
        for file, parts in quotes(sections[way]):
            source = (PACKAGE / file).read_text("utf-8")
            assert [part for part in parts if f"{part}\n" not in source] == [], file


def test_the_page_on_operators_quotes_the_error_for_a_closure() -> None:
    def foo(dim: int) -> Callable[..., object]:
        def fold(x: object) -> tuple[object, int]:
            return x, dim

        return fold

    page = (ROOT / "docs" / "adding-an-operator.md").read_text("utf-8")
    (quoted,) = re.findall(r"```\nNotAValueError: (.*?)\n```", page, re.DOTALL)
    with pytest.raises(NotAValueError) as raised:
        check_function("aten::foo", foo(1))
    prefix = f"{test_the_page_on_operators_quotes_the_error_for_a_closure.__name__}.<locals>."
    assert str(raised.value).replace(prefix, "") == quoted.replace("\n", " ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_a_document_is_over_120_characters(page: Path) -> None:
    long = [f"{page.name}:{number}" for number, line in prose(page) if len(line) > WIDTH]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_document_gives_with_their_file_are_in_it(page: Path) -> None:
    """``engine/store.py: Store.template`` and the like."""
    missing = []
    for file, name in re.findall(rf"`((?:(?:{FOLDERS})/)?[\w/]+\.py): ([\w.]+)`", page.read_text("utf-8")):
        texts = [path.read_text("utf-8") for root in (ROOT, PACKAGE) if (path := root / file).is_file()]
        missing += [
            f"{file}: {name}" for part in name.split(".") if not any(re.search(rf"\b{part}\b", t) for t in texts)
        ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_document_names_are_there(page: Path) -> None:
    named = re.findall(OURS, page.read_text("utf-8"))
    assert [name for name in named if not any((root / name).is_file() for root in (ROOT, PACKAGE))] == []
