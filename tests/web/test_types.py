"""The types of the JavaScript, checked by TypeScript, and its size."""

from __future__ import annotations

import gzip
import json
import re
import shutil
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


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_the_npm_package_has_the_runtime_and_no_more() -> None:
    """The folder of the runtime is one, as it is."""
    done = subprocess.run(
        ["npm", "pack", "--dry-run", "--json", "--ignore-scripts", "--offline"], cwd=RUNTIME, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    (package,) = json.loads(done.stdout)
    modules = {path.name for path in RUNTIME.glob("*.js")}
    assert {file["path"] for file in package["files"]} == {"README.md", "package.json", *modules}
    assert (package["name"], package["version"]) == ("torch-webgpu", torch_webgpu.__version__)
    about = json.loads((RUNTIME / "package.json").read_text())
    assert not {"dependencies", "scripts"} & about.keys()
    assert {path.removeprefix("./") for path in about["exports"].values()} <= modules


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
    text = "".join(loaded.values())
    assert len(gzip.compress(text.encode(), 9)) < MAX_RUNTIME_BYTES


def test_documentation_is_nowhere_but_in_comments() -> None:
    for path in RUNTIME.glob("*.js"):
        left = without_documentation(path.read_text())
        assert "/**" not in left
        assert "*/" not in left, path.name
