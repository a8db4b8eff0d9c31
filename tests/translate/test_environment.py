"""TORCH_WEBGPU_TRANSLATE: which devices it may name, and what becomes of a program where it names none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_webgpu.translation import router, session

PROGRAM = "import torch\nprint(torch.ones(1, device='cuda').device)\n"


@pytest.mark.parametrize("said", ["webgpu", " WebGPU ", "cuda"])
def test_it_may_name_a_device(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.VARIABLE, said)
    assert session.asked_device() == said.strip().lower()


@pytest.mark.parametrize("said", ["", "0", "off", "1", "auto", "ON", "true"])
def test_it_may_name_none(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.VARIABLE, said)
    assert session.asked_device() == "auto"


def test_it_may_not_name_what_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.VARIABLE, "wbgpu")
    with pytest.raises(ValueError, match=r"TORCH_WEBGPU_TRANSLATE='wbgpu'.*cuda, mps, xpu, webgpu, cpu"):
        session.enable_as_asked()
    assert session.active() is None


def test_nor_may_a_program() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="device 'wbgpu' is not one of auto, cuda, mps"):
            session.enable("wbgpu")
        session.enable("cpu")  # the same where translation is on
    session.disable()


def run(*words: str, said: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own with the variable."""
    environment = os.environ | {session.VARIABLE: said}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("way", ["script", "text", "run"])
def test_the_program_ends_with_one_line(way: str, tmp_path: Path) -> None:
    """On a device that was not meant it would run for long before it is noticed."""
    (path := tmp_path / "program.py").write_text(PROGRAM)
    words = {"script": (str(path),), "text": ("-c", PROGRAM), "run": ("-m", "torch_webgpu.cli", "run", str(path))}[way]
    done = run(*words, said="wbgpu")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert all(name in line for name in ("TORCH_WEBGPU_TRANSLATE='wbgpu'", *router.ORDER))
    assert "(did you mean 'webgpu'?)" in line


@pytest.mark.skipif(not router.available("mps").wrong, reason="the device is there")
def test_likewise_where_the_device_is_not_there() -> None:
    done = run("-c", PROGRAM, said="mps")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "mps cannot be used here" in line
    assert "webgpu, cpu" in line


@pytest.mark.parametrize("words", [("nothing.py",), ("-m", "nothing_there")], ids=["script", "module"])
def test_a_program_that_is_not_there_is_one_line(words: tuple[str, ...]) -> None:
    done = run("-m", "torch_webgpu.cli", "run", "--device", "cpu", *words, said="")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words[-1] in line
