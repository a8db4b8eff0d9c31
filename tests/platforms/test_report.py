"""``torch-webgpu doctor --report``: one file for bug reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.test_doctor import Machine

from torch_webgpu import cli
from torch_webgpu.runtime.adapters import Survey


def test_a_report_is_one_file_without_the_user_s_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(monkeypatch)
    machine.seen = Survey(gpus=[[machine.wgpu.adapter()]])
    home = tmp_path / "home of jo\\anna"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("TORCH_WEBGPU_CACHE_DIR", str(home / "plans"))
    monkeypatch.setenv("SECRET", "is not a setting")
    path = tmp_path / "report.json"
    assert cli.main(["doctor", "--report", str(path)]) == 0
    text = path.read_text("utf-8")
    data = json.loads(text)
    assert data["settings"]["TORCH_WEBGPU_CACHE_DIR"].startswith("~")
    assert data["adapters"][0]["limits"]["max-buffer-size"] == 1 << 30
    assert {"torch", "python", "system"} <= data["versions"].keys()
    assert "anna" not in text
    assert "SECRET" not in text
    assert str(path) in capsys.readouterr().out
