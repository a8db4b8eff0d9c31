"""What pyproject.toml promises of Python and PyTorch, wherever else it is said."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import torch_webgpu

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
OLDEST = re.fullmatch(r">=3\.(\d+)", PYPROJECT["project"]["requires-python"])


def oldest() -> int:
    """The minor version of the oldest Python that the package may be installed for."""
    assert OLDEST is not None
    return int(OLDEST[1])


def is_oldest_allowed(library: str) -> bool:
    """Whether no older release of a dependency than the one that is installed may be."""
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    allowed = [Requirement(text) for text in (*PYPROJECT["project"]["dependencies"], *chain(*extras))]
    (specifier,) = [requirement.specifier for requirement in allowed if requirement.name == library]
    oldest = min([Version(part.version) for part in specifier if part.operator in ("==", ">=")])
    return Version(version(library)) <= oldest


@pytest.mark.parametrize("library", ["torch", "numpy", "wgpu", "wgpudawn", "cffi", "jinja2"])
def test_every_dependency_can_be_installed_for_the_oldest_python(library: str) -> None:
    try:
        needs = re.match(r">=3\.(\d+)", metadata(library).get("Requires-Python", ">=3.0"))
    except PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    assert needs is not None
    if int(needs[1]) > oldest() and sys.version_info >= (3, int(needs[1])) and not is_oldest_allowed(library):
        pytest.skip(f"this {library} is for Python {needs[0]}: for an older one pip takes an older {library}")
    assert int(needs[1]) <= oldest()


def test_the_oldest_python_is_the_same_everywhere() -> None:
    python, short = f"3.{oldest()}", f"py3{oldest()}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == short
    assert f"Programming Language :: Python :: {python}" in PYPROJECT["project"]["classifiers"]
    assert f'"{python}"' in (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert f"version_info < (3, {oldest()})" in (ROOT / "scripts/setup.sh").read_text("utf-8")
    assert f"Python ≥ {python}" in (ROOT / "README.md").read_text("utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    ours = PYPROJECT["project"]["version"]
    assert torch_webgpu.__version__ == ours
    package = json.loads((ROOT / "src/torch_webgpu/export/js/package.json").read_text("utf-8"))
    assert package["version"] == ours
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    released = [heading for heading in headings if heading[0] != "Unreleased"]
    assert released[0][0] == ours
    assert released[0][1], "a release has a date"
    assert f"\n## {ours}\n" in (ROOT / "docs/releases.md").read_text("utf-8")


def test_the_package_runs_as_its_command() -> None:
    """``python -m torch_webgpu``, in a process that has nothing imported."""
    done = subprocess.run(
        [sys.executable, "-m", "torch_webgpu", "--help"], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.startswith("usage: torch-webgpu")


def test_the_dockerfile_copies_what_the_build_needs() -> None:
    """What is not copied, or is kept out by .dockerignore, is missing in the image only."""
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = [name for line in re.findall(r"^COPY (.+)$", dockerfile, re.M) for name in line.split()[:-1]]
    project = PYPROJECT["project"]
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in kept
    pinned = re.search(r"^ARG TORCH=(\S+)$", dockerfile, re.M)
    assert pinned is not None
    assert f"torch=={pinned[1]}" in (ROOT / "constraints.txt").read_text("utf-8")


def test_the_readme_promises_what_was_tried() -> None:
    """Systems that nobody has run this on are in the table of those."""
    readme = (ROOT / "README.md").read_text("utf-8")
    tried = readme[readme.index("### Where it was run") :]
    assert re.search(r"^\| Windows, macOS, Linux on ARM \| – \| never", tried, re.MULTILINE)
    assert re.search(r"^\| AMD, Intel, Apple, Qualcomm GPUs \| – \| never", tried, re.MULTILINE)
    assert "git clone" not in readme
    assert "compiled once per process" not in readme
    assert re.search(r"integrated GPU, so it is not known whether", readme)
