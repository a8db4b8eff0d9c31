"""``torch.compiler.save_cache_artifacts()`` carries plans from process to process, and brings nothing else along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from tests.compile.test_cache import PROGRAM
from tests.installed import needs_installation

from torch_webgpu.compile import artifacts, cache
from torch_webgpu.errors import WebGPUError
from torch_webgpu.plan import Plan

LOAD = """
import sys, torch
info = torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
assert len(info.artifacts["webgpu_plan"]) == 2, info
"""
SAVE = """
import sys
data, info = torch.compiler.save_cache_artifacts()
assert len(info.webgpu_plan_artifacts) == 2, info
open(sys.argv[1], "wb").write(data)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "plans")
    torch._dynamo.reset()
    yield tmp_path / "plans"
    torch._dynamo.reset()


def run(program: str, folder: Path, carried: Path) -> tuple[str, str]:
    """How many plans a process with an empty cache made, and what it computed."""
    environment = {
        **os.environ,
        "TORCH_WEBGPU_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    command = [sys.executable, "-c", program, str(carried)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made, _, results = done.stdout.strip().splitlines()[-1].partition(" ")
    return made, results


@needs_installation
def test_another_machine_makes_no_plan(tmp_path: Path) -> None:
    carried = tmp_path / "artifacts"
    made, results = run(PROGRAM + SAVE, tmp_path / "first", carried)
    assert made == "2"  # forward and backward
    assert run(LOAD + PROGRAM, tmp_path / "second", carried) == ("0", results)
    assert {path.name.partition(".")[2] for path in (tmp_path / "second").glob("*.plan")} == {"loaded.plan"}
    assert run(LOAD + PROGRAM + SAVE, tmp_path / "third", carried) == ("0", results), "what was read is carried on"


def load(name: str, data: bytes) -> None:
    from torch.compiler._cache import CacheArtifactFactory

    CacheArtifactFactory.create(artifacts.TYPE, name, data).populate_cache()


@pytest.mark.parametrize("name", ["../" + "0" * 61, "0" * 63, "0" * 64 + "/x", "", "A" * 64, "0" * 64 + "\n"])
def test_names_are_checked(name: str, folder: Path) -> None:
    with pytest.warns(UserWarning, match="is no name of a plan"):
        load(name, b"")
    assert not folder.exists()


@pytest.mark.parametrize("data", [b"", b"x" * 100, sha256(b"a").hexdigest().encode() + b"b"])
def test_what_is_damaged_is_left_out(data: bytes, folder: Path) -> None:
    with pytest.warns(UserWarning, match="an artifact of a plan was left out: it is damaged"):
        load("0" * 64, data)
    assert not folder.exists()


def test_what_is_no_plan_is_made_again(folder: Path) -> None:
    load("0" * 64, sha256(b"no zlib").hexdigest().encode() + b"no zlib")
    assert [path.name for path in folder.iterdir()] == ["0" * 64 + ".loaded.plan"]
    assert cache.PlanFile((folder, "0" * 64)).read() is None
    assert not list(folder.iterdir())


def test_loaded_plans_are_compiled_with_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = []

    def noted(path: Path, trusted_file: bool = False, **_: object) -> Plan:
        trusted.append(trusted_file)
        raise WebGPUError("enough")

    torch.compile(lambda t: (t * 2).sin().sum(0))(torch.ones(4, 3, device="webgpu"))
    (written,) = folder.glob("*.plan")
    name = written.name.partition(".")[0]
    monkeypatch.setattr(Plan, "load", staticmethod(lambda path, trusted: noted(path, trusted)))
    load(name, written.read_bytes())
    assert cache.PlanFile((folder, name)).read() is None
    assert trusted == [True, False]


def test_nothing_is_written_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "folder", lambda: None)
    load("0" * 64, b"")
    assert not list(tmp_path.iterdir())
