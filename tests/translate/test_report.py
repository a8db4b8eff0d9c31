"""What a program is told at its end: the table, JSON and the page, of a run that is known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from torch_webgpu.translation import report, session
from torch_webgpu.translation.report import Call, Report, aligned

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is translated where there is CUDA")

PROGRAM = '''"""A program for CUDA."""
import torch
x = torch.randn(4, 4, device="cuda")
for _ in range(3):
    torch.cuda.synchronize()
assert x.is_cuda and torch.cuda.is_available()
torch.cuda.nvtx.range_push("<step>")
torch.linalg.eigvals(x.to(torch.complex128))
torch.cuda.nvtx.range_pop()
'''


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with a program and its report in each form; what was printed."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "program.py").write_text(PROGRAM)
    files = [word for name in ("r.html", "r.json", "r.txt") for word in ("--report-file", name)]
    command = [sys.executable, "-m", "torch_webgpu.cli", "run", "--device", "webgpu", "--report", *files, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_json(written: tuple[Path, str]) -> None:
    found = json.loads((written[0] / "r.json").read_text())
    calls = {call["name"]: call for call in found["calls"]}
    assert found["device"] == "webgpu"
    assert found["files"] == ["program.py"]
    assert calls["torch.cuda.synchronize"]["count"] == 3
    assert calls["torch.cuda.synchronize"]["place"] == "program.py:5"
    assert calls["torch.cuda.synchronize"]["answer"] == "translated"
    assert calls["torch.cuda.is_available"]["place"] == "program.py:6"
    assert found["fallbacks"]
    assert found["peak_bytes"] >= 64
    assert 0 < found["seconds_to_enable"] < found["seconds"]


def test_text(written: tuple[Path, str]) -> None:
    folder, printed = written
    saved = (folder / "r.txt").read_text()
    assert re.search(r"torch\.cuda\.synchronize +translated +3 .* program\.py:5", saved)
    assert "ran on the CPU: aten._linalg_eigvals" in saved
    names = [line.split()[0] for line in saved.splitlines() if line.startswith("torch.cuda.")]
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("torch.cuda.")] == names


class Page(HTMLParser):
    """Checks that tags are closed in their order, and that nothing is loaded; collects the text."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img")
        assert not {"src", "href"} & {name for name, _ in attributes}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_page(written: tuple[Path, str]) -> None:
    page = Page()
    page.feed((written[0] / "r.html").read_text())
    assert page.open == []
    text = " ".join(page.text)
    assert all(part in text for part in ("torch.cuda.synchronize", "program.py:5", "aten._linalg_eigvals", "Calls"))


def made(**changes: object) -> Report:
    values: dict[str, object] = {
        "device": "webgpu", "adapter": "<Adapter & sons>", "seconds": 2.0, "seconds_to_enable": 0.01,
        "seconds_rewriting": 0.0, "files": (), "packages": (), "calls": (), "libraries": {}, "fallbacks": {},
        "peak_bytes": None,
    }  # fmt: skip
    return Report(**(values | changes))  # type: ignore[arg-type]


def test_texts_are_escaped() -> None:
    call = Call("torch.cuda.x", "no-op", 1, 0.0, "<stdin>:1", "a < b & c")
    page = Page()
    page.feed(made(calls=(call,)).to_html())
    assert "<Adapter & sons>" in page.text
    assert "a < b & c" in page.text
    assert "<stdin>:1" in page.text


def test_nothing_to_tell() -> None:
    assert "Nothing that belongs to another device was called" in made().to_html()
    assert str(made()).splitlines()[0] == "translated to webgpu (<Adapter & sons>)"


def test_libraries_that_could_be_translated() -> None:
    text = str(made(libraries={"whisper": 2}))
    assert "were told that there is none: whisper" in text
    assert "--package whisper" in text


def test_columns() -> None:
    rows = [("name", "answer", "calls", "ms", "place"), ("a", "same", "1,000", "2", "x.py:1")]
    assert aligned(rows) == ["name  answer  calls  ms  place", "a     same    1,000   2  x.py:1"]


def test_of_this_process() -> None:
    begun = session.enable("cpu")
    try:
        torch.cuda.synchronize()
        found = report.report(begun)
    finally:
        session.disable()
    assert [call.name for call in found.calls] == ["torch.cuda.synchronize"]
    assert found.peak_bytes is None
    assert found.counts() == {found.calls[0].answer: (1, 1)}


def test_workers_write_none(tmp_path: Path) -> None:
    """Processes that the program starts are asked by the same environment."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def work(rank): print(torch.ones(1, device='cuda').device.type, flush=True)\n"
        "if __name__ == '__main__': mp.spawn(work, nprocs=1)\n"
    )
    environment = os.environ | {"TORCH_WEBGPU_TRANSLATE": "cpu", "TORCH_WEBGPU_TRANSLATE_REPORT": "-"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr
    assert done.stderr.count("translated to cpu") == 1
