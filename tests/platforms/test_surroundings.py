"""A process whose surroundings lack what developers' have: a copy of the package that cannot be written, whose sources
have Windows' line ends, in a folder with a blank and an umlaut; no home, no user's name; output in a code page.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_webgpu

SOURCES = Path(torch_webgpu.__file__).parents[1]
MODULES = ("torch_webgpu", "torch_webgpu_autoload.py")
KEPT = ("PATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP")
PROGRAM = """
import torch, torch_webgpu
from torch import nn
assert "ü" in torch_webgpu.__file__, torch_webgpu.__file__
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).to("webgpu")
x = torch.randn(16, 1, 8, 8)
y = torch.compile(model)(x.to("webgpu"))
y.square().sum().backward()
torch.testing.assert_close(y.detach().cpu(), model.cpu()(x).detach(), rtol=1e-3, atol=1e-3)
x = torch.randn(50, 700)
torch.testing.assert_close(x.to("webgpu").sort(1)[0].cpu(), x.sort(1)[0])
print("right: gr\\u00fcn")
"""


def obey_modes() -> None:
    """Makes what this process starts obey files' modes, also as root on Linux."""
    prctl, drop_capability, override_modes = ctypes.CDLL(None).prctl, 24, 1
    prctl(drop_capability, override_modes, 0, 0, 0)


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A folder with a copy of the package that nobody but root can write."""
    root = Path(tempfile.mkdtemp(prefix="mit Leerzeichen und ü "))
    try:
        for name in MODULES:
            source = SOURCES / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        for path in root.rglob("*"):
            if path.suffix in (".py", ".wgsl", ".js", ".json", ".html", ".j2", ".css"):
                text = path.read_bytes().replace(b"\r\n", b"\n")
                path.write_bytes(text.replace(b"\n", b"\r\n"))
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield root
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(root)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the process works and keeps temporary files: everybody may write there."""
    path = Path(tempfile.mkdtemp(prefix="Arbeit ä "))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={name: os.environ[name] for name in KEPT if name in os.environ}
        | {"PYTHONPATH": str(installed), "PYTHONIOENCODING": "cp1252", "TMPDIR": str(folder)},
        preexec_fn=obey_modes if sys.platform == "linux" else None,
        cwd=folder, capture_output=True, timeout=280, check=False,
    )  # fmt: skip


def test_a_program_without_home_or_name_runs_from_a_package_with_windows_line_ends(
    installed: Path, folder: Path
) -> None:
    program = folder / "Größe.py"
    program.write_text(PROGRAM, "utf-8")
    program.chmod(0o644)
    done = run(installed, folder, str(program))
    assert (done.returncode, done.stdout.decode("cp1252").strip()) == (0, "right: grün"), done.stderr.decode("cp1252")
    assert not list(installed.rglob("__pycache__")), "a package that cannot be written was written"


def test_the_doctor_writes_in_a_code_page(installed: Path, folder: Path) -> None:
    done = run(installed, folder, "-m", "torch_webgpu", "doctor", "--report", "a report ö.md")
    assert done.returncode == 0, done.stderr.decode("cp1252")
    assert "a report ö.md" in done.stdout.decode("cp1252")
    assert "webgpu:0" in (folder / "a report ö.md").read_text("utf-8")


def test_a_program_for_cuda_is_translated_there(installed: Path, folder: Path) -> None:
    program = folder / "für cuda.py"
    program.write_text('import torch\nprint(torch.ones(3, device="cuda").sum().item(), "\\u00fc")\n', "utf-8")
    program.chmod(0o644)
    done = run(installed, folder, "-m", "torch_webgpu", "run", "--device", "webgpu", str(program))
    assert (done.returncode, done.stdout.decode("cp1252").strip()) == (0, "3.0 ü"), done.stderr.decode("cp1252")
