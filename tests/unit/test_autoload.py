"""``import torch`` with a PyTorch that this package does not know: one warning, and an error of the device."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from tests.installed import needs_installation

import torch_webgpu_autoload

pytestmark = needs_installation

BREAK = '''
import importlib.abc, sys, warnings

class Gone(importlib.abc.MetaPathFinder):
    """Takes a name out of PyTorch when the device is about to be loaded."""

    def find_spec(self, name, path, target=None):
        if name == WHEN:
            owner, _, last = NAME.rpartition(".")
            value = sys.modules["torch"]
            for part in owner.split(".")[1:]:
                value = getattr(value, part)
            delattr(value, last)
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Gone())
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import torch
(warned,) = warned
'''
ON_THE_CPU = """
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout())
optimizer = torch.optim.Adam(model.parameters())
for batch in torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4):
    optimizer.zero_grad()
    checkpoint(model, batch, use_reentrant=False).sum().backward()
    optimizer.step()
with torch.random.fork_rng():
    torch.rand(1)
assert not torch.accelerator.is_available()
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
"""
USES = """
import pytest
for use in (
    lambda: torch.ones(2, device="webgpu"),
    lambda: torch.ones(2).to("webgpu"),
    lambda: model.to("webgpu"),
    lambda: torch.tensor([1.0], device="webgpu"),
    lambda: torch.webgpu.synchronize(),
    lambda: torch.webgpu.memory_allocated(),
):
    with pytest.raises(RuntimeError, match="has no attribute '_?" + LAST.lstrip("_")) as caught:
        use()
    assert caught.value.__cause__ is not None
"""


def run(script: str, **environment: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def broken(name: str, when: str) -> str:
    return f"NAME, WHEN, LAST = {name!r}, {when!r}, {name.rpartition('.')[2]!r}\n{BREAK}"


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("torch._C._AutoDispatchBelowAutograd", "torch_webgpu.aten"),
        ("torch._C._conv_determine_backend_memory_format", "torch_webgpu.aten"),
        # Gone between the imports, all of which come first, and their use: the device is registered by then.
        ("torch.nn.parallel.data_parallel._get_available_device_type", "torch_webgpu.aten"),
    ],
)
def test_a_private_name_that_is_gone_is_one_warning_and_an_error_of_the_device(name: str, when: str) -> None:
    after = """
    text = str(warned.message)
    assert LAST in text and torch.__version__ in text and "2.11 to 2.14" in text and len(text.splitlines()) == 1
    """
    explicit = """
    for _ in range(2):
        with pytest.raises(AttributeError, match=LAST):
            import torch_webgpu
    assert not torch.webgpu.is_available() and torch.webgpu.device_count() == 0
    """
    run(broken(name, when) + textwrap.dedent(after) + ON_THE_CPU + USES + textwrap.dedent(explicit))


@pytest.mark.parametrize("name", ["torch._C._acc.DeviceGuard", "torch._C._acc.register_python_privateuseone_hook"])
def test_likewise_where_not_even_a_device_can_be_registered_that_says_so(name: str) -> None:
    uses = """
    import pytest
    with pytest.raises(RuntimeError):
        torch.ones(2, device="webgpu")
    with pytest.raises(RuntimeError, match=LAST):
        torch.webgpu.synchronize()
    """
    cpu = ON_THE_CPU.replace("assert not torch.accelerator.is_available()", "")
    run(broken(name, "torch_webgpu") + cpu + textwrap.dedent(uses))


def test_nothing_is_registered_beside_an_accelerator_that_nobody_could_ask_about() -> None:
    name = "torch._C._accelerator_getAccelerator"
    uses = """
    import pytest
    with pytest.raises(RuntimeError, match="Expected one of"):
        torch.ones(2, device="webgpu")
    with pytest.raises(RuntimeError, match=LAST):
        torch.webgpu.synchronize()
    """
    run(broken(name, "torch_webgpu_autoload") + textwrap.dedent(uses))


def test_translation_that_fails_leaves_the_program_and_the_device() -> None:
    script = broken("torch.nn.parallel.data_parallel.DataParallel", "torch_webgpu.translation")
    done = run(script + "print(warned.message, torch.accelerator.current_accelerator())", TORCH_WEBGPU_TRANSLATE="1")
    assert "TORCH_WEBGPU_TRANSLATE" in done
    assert done.strip().endswith("webgpu")


def test_the_tested_range_is_that_of_the_dependencies() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    (needed,) = (one for one in pyproject["project"]["dependencies"] if one.startswith("torch"))
    first, last = torch_webgpu_autoload.TESTED_TORCH.split(" to ")
    major, minor = last.split(".")
    assert needed == f"torch>={first},<{major}.{int(minor) + 1}"
