"""How a translated program is started on other systems: rows 4 and 10 of the audit of 23 November 2026."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.installed import needs_installation

from torch_webgpu import doctor
from torch_webgpu.translation import launch

EXEC_OF_WINDOWS = """
import os, subprocess, sys

def execv(path, arguments):
    starts = int(os.environ.get("STARTS", 0)) + 1
    if starts > 3:
        os.write(2, b"it starts itself for ever")
        os._exit(9)
    os.environ["STARTS"] = str(starts)
    status = subprocess.call([path, *arguments[1:]])
    os._exit(status)

os.execv = execv
"""
"""A process with another id, as there; that this one waits for it is ours, to see what comes of it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder of a program: with a blank and an umlaut in its name, and modules called like Python's."""
    folder = tmp_path / "my prögrams"
    folder.mkdir()
    for name in ("argparse.py", "torch_webgpu.py", "numpy.py"):
        (folder / name).write_text(f"raise SystemExit('{name} of the working folder was imported')")
    return folder


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        timeout=290,
    )  # fmt: skip


def test_row_4_on_windows_a_process_waits_for_the_one_that_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is typed meanwhile: Ctrl-C goes to both, and is the program's affair."""
    monkeypatch.setattr(launch, "sys", SimpleNamespace(platform="win32", executable=sys.executable))
    monkeypatch.setattr(os, "execv", None)
    interrupted = [KeyboardInterrupt, KeyboardInterrupt]
    wait = subprocess.Popen.wait

    def waited(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if interrupted:
            raise interrupted.pop()
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    program = tmp_path / "a program.py"
    program.write_text("import sys; sys.exit(40 + len(sys.argv[1:]))")
    with pytest.raises(SystemExit) as ended:
        launch.become(["python", str(program), "two words", 'a "quote"'])
    assert ended.value.code == 42
    assert not interrupted


@needs_installation
@pytest.mark.parametrize("flags", [[], ["-P"]], ids=["plain", "-P"])
def test_rows_4_and_10_a_process_with_another_id_starts_once_and_imports_nothing_of_the_working_folder(
    folder: Path, tmp_path: Path, flags: list[str]
) -> None:
    """The program's own folder comes first for the program, as ever, unless Python was told to leave it out."""
    elsewhere, site = tmp_path / "else where", tmp_path / "site"
    elsewhere.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(EXEC_OF_WINDOWS)
    (elsewhere / "beside.py").write_text("value = 7")
    (elsewhere / "program.py").write_text(
        "import argparse, os, sys, torch\n"
        "try:\n    import beside\n    print(beside.value)\nexcept ImportError:\n    print('none')\n"
        "print(os.environ['STARTS'], torch.device('cuda').type, sys.argv[1:], any('zip' in e for e in sys.path))\n"
    )
    # An empty part would be the working folder.
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    program = str(elsewhere / "program.py")
    done = python(*flags, program, "two words", folder=folder, TORCH_WEBGPU_TRANSLATE="webgpu", PYTHONPATH=path)
    said = f"{'none' if flags else 7}\n1 webgpu ['two words'] True\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_row_10_the_doctor_s_trials_import_nothing_of_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> None:
        commands.append(command)
        raise OSError

    monkeypatch.setattr(subprocess, "run", run)
    assert doctor._tried("wgpu") == []
    (command,) = commands
    assert command[1:4] == ["-P", "-m", "torch_webgpu.cli"]
