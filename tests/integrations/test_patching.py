"""How libraries are patched: when they are imported, never earlier, also when they came first."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.device.processes import assert_ends_well, run_script

from torch_webgpu import integrations
from torch_webgpu.integrations.libraries import Libraries
from torch_webgpu.on_import import Watcher
from torch_webgpu.patching import Patches
from torch_webgpu_autoload import other_accelerator

BACKENDS = "torch.backends"
PATCHES = Patches()


@PATCHES.add("fake_library.devices", "pick", upstream="https://example.org")
def patched_function(plain: Any) -> Any:
    """It says CPU."""
    return lambda: "webgpu" if plain() == "cpu" else plain()


@PATCHES.add("fake_library.devices", "State.device", upstream="https://example.org")
def patched_property(plain: property) -> property:
    """It says CPU."""
    return property(lambda self: f"not {plain.__get__(self)}")


@PATCHES.add(["fake_library.registry", "fake_library.not_in_this_release"], upstream="https://example.org")
def registered(module: ModuleType) -> None:
    """By its own means."""
    module.known.append("webgpu")


DEVICES = """
def pick():
    return "cpu"

class State:
    @property
    def device(self):
        return "cpu"
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library's folder, importable; nothing of it is imported, nor anything left of it afterwards."""
    folder = tmp_path / "fake_library"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "devices.py").write_text(DEVICES)
    (folder / "user.py").write_text("from .devices import pick as choose\nfrom .registry import known\n")
    (folder / "registry.py").write_text("known = ['cpu']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("", ".devices", ".user", ".registry"):  # so that what the test imports goes away again
        monkeypatch.setitem(sys.modules, f"fake_library{name}", ModuleType("nothing"))
        del sys.modules[f"fake_library{name}"]
    return folder


def install(patches: str = __name__) -> None:
    """Watches for the library, with the patches of a module."""
    for patch in PATCHES:
        patch.plain = None
    Watcher().watch("fake_library", Libraries({"fake_library": patches}).find)


def assert_patched() -> None:
    user, devices = (importlib.import_module(f"fake_library.{name}") for name in ("user", "devices"))
    assert (user.choose(), devices.pick(), devices.State().device) == ("webgpu", "webgpu", "not cpu")
    assert user.known == ["cpu", "webgpu"]
    assert PATCHES[0].plain() == "cpu"
    assert PATCHES[0].reason == "It says CPU."


def test_patched_at_import_and_not_earlier(library: Path) -> None:
    install()
    assert "fake_library" not in sys.modules
    importlib.import_module("fake_library")
    assert "fake_library.devices" not in sys.modules
    assert PATCHES[0].plain is None
    assert_patched()


def test_patched_late(library: Path) -> None:
    user = importlib.import_module("fake_library.user")
    assert user.choose() == "cpu"
    install()
    assert_patched()


def test_patched_when_it_is_the_library_that_imports_us(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "install_patches", install, raising=False)
    (library / "devices.py").write_text("import sys\nsys.install_patches()\n" + DEVICES)
    assert_patched()


def test_a_function_taken_from_a_patched_module_is_patched_once(library: Path) -> None:
    (library / "__init__.py").write_text("from .devices import pick\n")
    both = Patches()
    both.add(("fake_library.devices", "fake_library"), "pick", upstream="")(lambda plain: lambda: plain() + "!")
    module = ModuleType("patches_of_two_places")
    module.PATCHES = both  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    install(module.__name__)
    library_module = importlib.import_module("fake_library")
    assert library_module.pick() == library_module.devices.pick() == "cpu!"


def test_a_library_that_changed_is_left_alone_with_a_warning(library: Path) -> None:
    (library / "devices.py").write_text("class State:\n    device = 'tpu'\n")
    install()
    with pytest.warns(
        RuntimeWarning, match=r"does not fit this version of fake_library.*devices\.pick: AttributeError"
    ):
        devices = importlib.import_module("fake_library.devices")
    assert not hasattr(devices, "pick")


def test_an_import_that_fails_fails_as_it_would(library: Path) -> None:
    (library / "devices.py").write_text(DEVICES + "\nraise ImportError('of its own')\n")
    install()
    with pytest.raises(ImportError, match="of its own"):
        importlib.import_module("fake_library.devices")
    assert "fake_library.devices" not in sys.modules
    (library / "devices.py").write_text(DEVICES)
    importlib.invalidate_caches()
    assert_patched()


def test_programs_without_the_libraries_import_nothing_for_them() -> None:
    assert_ends_well(
        """
        from torch_webgpu.integrations import LIBRARIES
        ours = {"torch_webgpu.integrations." + name for name in LIBRARIES.values()}
        assert not ours & sys.modules.keys(), ours & sys.modules.keys()
        assert not LIBRARIES.keys() & sys.modules.keys()
        import json, decimal, email.message
        assert not ours & sys.modules.keys()
        """
    )


def test_switched_off() -> None:
    script = """
    import importlib.util

    from torch_webgpu.integrations import LIBRARIES, known

    def installed(*names):
        return all(importlib.util.find_spec(name) for name in names)

    import safetensors.torch
    if installed("accelerate"):
        from accelerate import Accelerator
        assert Accelerator().device.type == "cpu"
    if installed("transformers", "accelerate"):
        from transformers import TrainingArguments
        assert TrainingArguments("nowhere").device.type == "cpu"
    if installed("lightning"):
        from lightning.fabric import Fabric
        assert Fabric().device.type == "cpu"
        from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
        assert "webgpu" not in ACCELERATOR_REGISTRY
    if installed("sentence_transformers"):
        from sentence_transformers.util import get_device_name
        assert get_device_name() == "cpu"
    if installed("stable_baselines3"):
        from stable_baselines3.common.utils import get_device
        assert get_device().type == "cpu"
    assert not [p for name in [*sys.modules] for p in known.patches(name) if p.plain is not None]
    """
    done = run_script(script, TORCH_WEBGPU_INTEGRATIONS="0")
    assert done.returncode == 0, done.stderr


LATE = """
import importlib.util, sys

present = [name for name in
           ("accelerate", "transformers", "lightning", "sentence_transformers", "stable_baselines3", "diffusers")
           if importlib.util.find_spec(name)]
{first}
if "accelerate" in present:
    from accelerate import Accelerator, state
    from accelerate.utils import get_max_memory
if "transformers" in present and "accelerate" in present:
    from transformers import TrainingArguments
if "lightning" in present:
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer
if "sentence_transformers" in present:
    from sentence_transformers.util import get_device_name
if "stable_baselines3" in present:
    from stable_baselines3.common.utils import get_device
if "diffusers" in present:
    from diffusers.pipelines import pipeline_utils
    from diffusers.utils import torch_utils
{last}

if "accelerate" in present:
    assert Accelerator(mixed_precision="fp16").device.type == "webgpu"
    assert 0 in get_max_memory()
if "transformers" in present and "accelerate" in present:
    assert TrainingArguments("nowhere", bf16=True).device.type == "webgpu"
if "lightning" in present:
    assert Fabric(precision="bf16-mixed")._precision.device == "webgpu"
    assert Trainer(precision="bf16-mixed", logger=False).precision_plugin.device == "webgpu"
if "sentence_transformers" in present:
    assert get_device_name() == "webgpu:0"
if "stable_baselines3" in present:
    assert get_device().type == "webgpu"
if "diffusers" in present:
    assert torch_utils.get_device() == "webgpu"
    assert "webgpu" in pipeline_utils.SUPPORTED_DEVICE_MAP
"""


@pytest.mark.parametrize(
    ("first", "last"),
    [("import torch, torch_webgpu", ""), ("", ""), ("", "import torch_webgpu")],
    ids=["us first", "a library imports us", "us last"],
)
def test_whichever_is_imported_first(first: str, last: str) -> None:
    """With "a library imports us", accelerate.accelerator is in the middle of its import when it imports torch."""
    if not any(importlib.util.find_spec(library) for library in set(integrations.LIBRARIES) - {"safetensors"}):
        pytest.skip("none of the libraries is installed")
    if not last and not first and other_accelerator() is not None:
        pytest.skip("`import torch` does not load us where PyTorch has an accelerator of its own")
    if not last and not first and not any(e.module.startswith("torch_webgpu") for e in entry_points(group=BACKENDS)):
        pytest.skip("`import torch` finds us by our installed metadata, and we are only on the path")
    script = LATE.format(first=first, last=last)
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0" if last else "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", script], env=environment, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ["safetensors.torch, torch", "torch, safetensors.torch"])
def test_safetensors_before_and_after_torch(order: str, tmp_path: Path) -> None:
    script = f"""
import {order}
safetensors.torch.save_file({{"x": torch.arange(4.0)}}, "{tmp_path}/x.safetensors")
x = safetensors.torch.load_file("{tmp_path}/x.safetensors", device="webgpu:0")["x"]
assert x.device.type == "webgpu" and x.tolist() == [0, 1, 2, 3]
"""
    # The device is there with "import torch" alone only where PyTorch has no accelerator of its own.
    script = script.replace("\nsafetensors", "\nimport torch_webgpu\nsafetensors", 1)
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


def test_safetensors_still_needs_it(tmp_path: Path) -> None:
    """The canary: when safetensors takes the device by its name, the patch can go."""
    import safetensors.torch

    safetensors.torch.save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    [patch] = integrations.known.patches("safetensors")
    with pytest.raises(safetensors.SafetensorError, match="webgpu"):
        patch.plain(tmp_path / "x.safetensors", "pt", device="webgpu")
