"""What CUDA code needs and cannot be here: errors that say what to use instead, and programs that get along without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from torch_webgpu.translation.missing import PACKAGES, Missing, MissingExtensionError
from torch_webgpu.translation.monitor import Monitor
from torch_webgpu.translation.replacements import Replacements


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    replacements, monitor = Replacements(), Monitor()
    missing = Missing("webgpu", replacements, monitor)
    missing.install()
    yield monitor
    missing.undo()
    replacements.restore()


def run(source: str, module: str = "__main__") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": module}
    exec(source, names)
    return names


def test_the_users_import_says_what_to_use_instead(monitor: Monitor) -> None:
    with pytest.raises(MissingExtensionError, match="scaled_dot_product_attention") as raised:
        run("import flash_attn")
    assert raised.value.name == "flash_attn"
    assert str(raised.value).startswith("No module named 'flash_attn'")
    assert monitor.calls["import flash_attn"].count == 1


def test_a_module_of_the_package_too(monitor: Monitor) -> None:
    with pytest.raises(MissingExtensionError, match=r"torch\.amp"):
        run("from apex.optimizers import FusedAdam")


def test_import_module_too(monitor: Monitor) -> None:
    with pytest.raises(MissingExtensionError):
        run("import importlib\nimportlib.import_module('flash_attn')")


@pytest.mark.parametrize("error", ["ImportError", "ModuleNotFoundError"])
def test_programs_that_try_go_on(monitor: Monitor, error: str) -> None:
    source = f"try:\n    import flash_attn\n    found = True\nexcept {error}:\n    found = False"
    assert run(source)["found"] is False


def test_who_only_looks_finds_nothing(monitor: Monitor) -> None:
    assert run("import importlib.util\nfound = importlib.util.find_spec('flash_attn')")["found"] is None
    assert not monitor.calls


def test_libraries_get_the_error_they_know(monitor: Monitor) -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        run("import flash_attn", "somelibrary")
    assert type(raised.value) is ModuleNotFoundError


def test_other_names_stay_unknown(monitor: Monitor) -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        run("import nothing_of_this_name")
    assert type(raised.value) is ModuleNotFoundError


def test_afterwards_nothing_is_left() -> None:
    before = list(sys.meta_path)
    missing = Missing("webgpu", Replacements(), Monitor())
    missing.install()
    missing.undo()
    assert [finder for finder in sys.meta_path if finder not in before and type(finder).__name__ == "Finder"] == []
    with pytest.raises(ModuleNotFoundError) as raised:
        run("import flash_attn")
    assert type(raised.value) is ModuleNotFoundError


@pytest.mark.parametrize(
    "call",
    [
        "load('mine', ['mine.cpp', 'mine_kernel.cu'])",
        "load(name='mine', sources=['kernel.cu'])",
        "load('mine', 'kernel.cu')",
        "load_inline('mine', cpp_sources='', cuda_sources='__global__ void f() {}')",
        "CUDAExtension('mine', ['mine.cpp'])",
    ],
)
def test_cuda_sources_are_refused(monitor: Monitor, call: str) -> None:
    with pytest.raises(NotImplementedError, match=r"CUDA C\+\+ is not compiled here.*torch\.compile"):
        run(f"from torch.utils import cpp_extension\ncpp_extension.{call}")
    name = call.partition("(")[0]
    assert monitor.calls[f"torch.utils.cpp_extension.{name}"].count == 1


def test_the_compilers_are_put_back(monitor: Monitor) -> None:
    from torch.utils import cpp_extension

    replacements = Replacements()
    before = cpp_extension.load
    missing = Missing("webgpu", replacements, Monitor())
    missing.install()
    assert cpp_extension.load is not before
    missing.undo()
    replacements.restore()
    assert cpp_extension.load is before


def test_every_package_says_what_to_do() -> None:
    assert all(len(text.split(";")) == 2 for text in PACKAGES.values())
