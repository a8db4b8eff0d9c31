"""What ``torch-webgpu doctor`` says of the libraries installed."""

from __future__ import annotations

from typing import Any

import pytest

from torch_webgpu import cli, doctor
from torch_webgpu.integrations import LIBRARIES, report
from torch_webgpu.integrations.report import _Question


def test_every_library_installed_finds_the_device() -> None:
    libraries = report.libraries()
    if not libraries:
        pytest.skip("none of the libraries is installed")
    for found in libraries:
        assert found.finds_webgpu, found
        assert not found.advice


def test_every_library_that_chooses_a_device_is_asked() -> None:
    asked = {question.distribution.replace("-", "_") for question in report.QUESTIONS}
    assert LIBRARIES.keys() - asked == {"deepspeed", "lightning_fabric", "safetensors", "torchao"}


def questions(monkeypatch: pytest.MonkeyPatch, *asked: _Question) -> list[report.LibraryCheck]:
    monkeypatch.setattr(report, "QUESTIONS", asked)
    return report.libraries()


def test_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = questions(monkeypatch, _Question("pytest", lambda: "cpu", "pass it"))
    assert (found.name, found.device, found.finds_webgpu) == ("pytest", "cpu", False)
    assert "this version of it is not known" in found.advice
    assert found.advice.endswith("; pass it")


def test_one_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "webgpu_device", lambda: None)
    [found] = questions(monkeypatch, _Question("pytest", lambda: "cuda:0", "pass it"))
    assert "PyTorch has an accelerator of its own here" in found.advice


def test_one_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise ImportError("its own library is missing\nand more")

    [found] = questions(monkeypatch, _Question("pytest", fails, "pass it"))
    assert (found.device, found.advice) == ("", "ImportError: its own library is missing")


def test_one_that_is_not_installed_or_asked_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = _Question("a-library-that-is-not-installed", lambda: "webgpu", "")
    other_name = _Question("torch", lambda: "cpu", "", instead_of="pytest")
    assert questions(monkeypatch, absent, other_name) == []


def test_the_command_prints_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    here = [
        report.LibraryCheck("one", "1.0", "webgpu:0", True),
        report.LibraryCheck("two", "2.0", "cpu", False, "pass it"),
        report.LibraryCheck("three", "3.0", "", False, "ImportError: no"),
    ]
    monkeypatch.setattr(doctor, "libraries", lambda: here)
    monkeypatch.setattr(doctor, "CHECKS", {})
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {
        line.split()[0]: line.split(maxsplit=3)[1:] for line in lines if line.startswith(("  one", "  two", "  th"))
    }
    assert found == {
        "one": ["1.0", "webgpu:0"],
        "two": ["2.0", "cpu", "pass it"],
        "three": ["3.0", "none", "ImportError: no"],
    }
