"""The types of the JavaScript, checked by TypeScript, and its size."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

import pytest

import torch_webgpu
from torch_webgpu.export.folder import without_documentation

RUNTIME = Path(torch_webgpu.__file__).parent / "export" / "js"
COMPILER = Path(__file__).parents[2] / ".web-tools" / "node_modules" / ".bin" / "tsc"
MAX_RUNTIME_BYTES = 10_000
MAX_LINES = 250
EXAMPLES = Path(__file__).parents[2] / "examples" / "web"
EVALUATION = (
    r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write|WebAssembly|createObjectURL"
    r"|set(Timeout|Interval)\(['\"`]"
)


@pytest.mark.skipif(not COMPILER.exists(), reason="there is no TypeScript: make web-setup")
def test_types() -> None:
    done = subprocess.run([COMPILER, "--project", RUNTIME], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_types_are_checked(tmp_path: Path) -> None:
    if not COMPILER.exists():
        pytest.skip("there is no TypeScript: make web-setup")
    (tmp_path / "tsconfig.json").write_bytes((RUNTIME / "tsconfig.json").read_bytes())
    (tmp_path / "wrong.js").write_text(
        "/** @param {GPUDevice} device */\nexport const f = device => device.createBufer();\n"
    )
    done = subprocess.run([COMPILER, "--project", tmp_path], capture_output=True, text=True, check=False)
    assert "createBufer" in done.stdout


def test_no_evaluation_of_text() -> None:
    """Nor WebAssembly, nor scripts that are made in the page: of the runtime, and of all pages."""
    scripts = [*RUNTIME.glob("*.js"), *(RUNTIME.parent / "page").glob("*.js"), *EXAMPLES.rglob("*.js")]
    assert len(scripts) > 15
    for path in scripts:
        assert not re.search(EVALUATION, path.read_text()), path.name


def test_modules_are_short() -> None:
    assert all(len(path.read_text().splitlines()) <= MAX_LINES for path in RUNTIME.glob("*.js"))


def test_the_runtime_is_small() -> None:
    """As it is exported, and together: the modules that a page loads with ``index.js``."""
    loaded, waiting = {}, ["index.js"]
    while waiting:
        name = waiting.pop()
        loaded[name] = without_documentation((RUNTIME / name).read_text())
        waiting += set(re.findall(r"from './([\w.]+)';", loaded[name])) - loaded.keys()
    assert "model.js" in loaded
    text = "".join(loaded[name] for name in sorted(loaded))  # the order changes the size by 1 %
    assert len(gzip.compress(text.encode(), 9)) < MAX_RUNTIME_BYTES


def test_documentation_is_nowhere_but_in_comments() -> None:
    for path in RUNTIME.glob("*.js"):
        left = without_documentation(path.read_text())
        assert "/**" not in left
        assert "*/" not in left, path.name
