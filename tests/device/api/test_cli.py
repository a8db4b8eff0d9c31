"""``torch-webgpu doctor`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from torch_webgpu import cli, doctor


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_webgpu.cli", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("arguments", [("compat", "torch.cuda.is_available"), ("run", "program.py")])
def test_the_command_as_it_is_installed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Its module is imported before torch, and by torch, which looks for its entry point there, in the middle of it."""
    (tmp_path / "program.py").write_text("import torch; print(torch.cuda.is_available(), torch.zeros(1).cuda().device)")
    (installed,) = entry_points(group="console_scripts", name="torch-webgpu")
    script = f"import sys; from {installed.module} import {installed.attr} as command; sys.exit(command())"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {"compat": "is_available", "run": "True webgpu:0"}[arguments[0]] in done.stdout


def test_doctor_finds_every_adapter_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "webgpu:0" in text
    assert "right  matrix product" in text
    assert "WRONG" not in text


def test_doctor_as_json_names_versions_features_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"torch", "wgpu", "wgpudawn", "python"} <= report["versions"].keys()
    first = report["adapters"][0]
    assert first["limits"]["max-buffer-size"] > 0
    assert first["device"] == "webgpu:0"
    assert first["verdict"]
    named = {one["name"]: one for one in report["implementations"]}
    assert named.keys() == {"dawn", "wgpu"}
    assert named[first["implementation"]]["version"]
    assert all(one["version"] or one["wrong"] for one in named.values())


def test_doctor_says_what_to_install_where_there_is_no_adapter() -> None:
    found = run("doctor", VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent", WGPU_BACKEND="vulkan")
    if "webgpu:0" in found.stdout:
        pytest.skip("this machine has an adapter that no Vulkan setting hides")
    assert found.returncode == 1
    assert "mesa-vulkan-drivers" in found.stdout


def test_a_wrong_result_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = doctor.CHECKS["elementwise"]
    monkeypatch.setitem(doctor.CHECKS, "elementwise", lambda device: right(device) + (device != "cpu"))
    assert cli.main(["doctor"]) == 1
    assert "WRONG  elementwise" in capsys.readouterr().out


def test_a_failing_computation_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(device: str) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setitem(doctor.CHECKS, "elementwise", fail)
    assert cli.main(["doctor"]) == 1
    assert "RuntimeError: no luck" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough() -> None:
    """As ``torch-webgpu compat --json | head -c 1``."""
    command = [sys.executable, "-m", "torch_webgpu.cli", "compat", "--json"]  # more than a pipe holds
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # else Python takes a part for the whole
    with subprocess.Popen(command, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 1
