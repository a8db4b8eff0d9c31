"""What is looked up in other systems' libraries is what they export: tables read off their wheels (scripts/exports.py).

Rows §1 and §2 "aten/torch_guard.py" of the audit of 23 November 2026: device guards on Windows.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torch_webgpu
from torch_webgpu.aten.dispatch import torch_guard

EXPORTS = json.loads((Path(__file__).parent / "exports.json").read_text("utf-8"))
PLATFORMS = {"win": "win32", "macosx": "darwin"}
GUARDED = sorted(key for key in EXPORTS if key.startswith("torch ") and not key.endswith((" pure", " entries before")))
HEADER = Path(torch.__file__).parent / "include" / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h"


@pytest.mark.parametrize("library", GUARDED)
def test_row_1_device_guards_have_the_name_that_each_compiler_gives_them(library):
    platform = next(PLATFORMS[word] for word in PLATFORMS if f" {word}" in library)
    abi = torch_guard.CXX_ABIS[platform]
    assert library.endswith(f" {abi.library}")
    assert EXPORTS[library] == [abi.guards]


@pytest.mark.parametrize("table", sorted(key for key in EXPORTS if key.endswith(" pure")))
def test_row_1_exchange_stream_is_where_the_header_says_also_in_tables_of_msvc(table):
    assert torch_guard.virtual_functions(HEADER.read_text("utf-8")).index("exchangeStream") in EXPORTS[table]


def test_row_1_tables_of_msvc_have_the_order_of_the_header():
    """Of the version that is installed, function for function."""
    known = EXPORTS.get(f"torch {torch.__version__.partition('+')[0]} win_amd64 c10.dll pure")
    if known is None:
        pytest.skip(f"nobody has read the table of torch {torch.__version__} for Windows yet")
    pure = re.findall(r"^ *virtual [^({]*?(\w+)\([^{;]*\)[^{;)]*= 0;", HEADER.read_text("utf-8"), re.MULTILINE)
    functions = torch_guard.virtual_functions(HEADER.read_text("utf-8"))
    assert [functions[n] for n in known] == pure


@pytest.mark.parametrize("table", sorted(key for key in EXPORTS if key.endswith(" entries before")))
def test_row_1_as_many_entries_are_before_the_first_function_as_msvc_puts_there(table):
    assert EXPORTS[table] == torch_guard.CXX_ABIS["win32"].entries_before


@pytest.mark.skipif(sys.platform == "win32", reason="a table of MSVC's is laid out otherwise")
def test_row_1_as_many_entries_are_before_the_first_function_as_this_compiler_puts_there():
    """The last is the type, whose second word is its name; the first is where in the object the table's pointer is."""
    guard = torch_guard._guards()[int(torch._C._autograd.DeviceType.CPU)]
    first_function = ctypes.c_size_t.from_address(guard).value
    before = (ctypes.c_ssize_t * torch_guard._abi().entries_before).from_address(
        first_function - torch_guard._abi().entries_before * ctypes.sizeof(ctypes.c_size_t)
    )
    offset, type_ = before
    assert offset == 0
    assert b"GuardImpl" in ctypes.string_at(ctypes.c_size_t.from_address(type_ + 8).value)


@pytest.mark.parametrize("entries_before", [1, 2])
def test_row_1_all_of_a_table_and_nothing_beside_it_is_copied(entries_before, monkeypatch):
    """A table between two words that are another's, of an object that stands in for the registered guard."""
    functions = torch_guard.virtual_functions(HEADER.read_text("utf-8"))
    words = ctypes.c_size_t * (1 + entries_before + len(functions) + 1)
    table = words(*range(100, 100 + len(words())))
    cpu_table = (ctypes.c_size_t * len(functions))(*range(500, 500 + len(functions)))
    ours, cpu = (
        ctypes.c_size_t(ctypes.addressof(table) + 8 * (1 + entries_before)),
        ctypes.c_size_t(ctypes.addressof(cpu_table)),
    )
    types = torch._C._autograd.DeviceType
    guards = {int(types.PrivateUse1): ctypes.addressof(ours), int(types.CPU): ctypes.addressof(cpu)}
    abi = replace(torch_guard.CXX_ABIS["win32"], entries_before=entries_before)
    kept = []
    monkeypatch.setattr(torch_guard, "_abi", lambda: abi)
    monkeypatch.setattr(torch_guard, "_guards", lambda: guards)
    monkeypatch.setattr(torch_guard, "_keep", kept.append)
    assert torch_guard.let_exceptions_pass()
    (copied,) = kept
    exchange = functions.index("exchangeStream")
    wanted = list(table)[1:-1]
    wanted[entries_before + exchange] = 500 + exchange
    assert list(copied) == wanted
    assert ours.value == ctypes.addressof(copied) + 8 * entries_before


@pytest.mark.parametrize("library", sorted(key for key in EXPORTS if key.startswith("wgpu ")))
def test_every_function_of_wgpu_native_is_exported(library):
    runtime = Path(torch_webgpu.__file__).parent / "runtime"
    sources = [source.read_text("utf-8") for source in runtime.glob("*.py") if source.name != "dawn.py"]
    wanted = {name for source in sources for name in re.findall(r"\blib\.(wgpu\w+)", source)}
    assert len(wanted) > 40
    assert wanted <= set(EXPORTS[library])


WITH_THE_TABLE_OF_WINDOWS = """
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

torch.__spec__._initializing = True  # so that the device is registered when we say so
import torch_webgpu
from torch_webgpu.aten.dispatch import torch_guard

here = torch_guard.CXX_ABIS[sys.platform]
windows = replace(torch_guard.CXX_ABIS["win32"], library=here.library, guards=here.guards)
torch_guard.CXX_ABIS = {"win32": windows}
torch_guard.sys = SimpleNamespace(platform="win32")
torch_guard._answers = None  # called by nobody
torch_webgpu.register()

x = torch.ones(3, device="webgpu", requires_grad=True)
y = x * 2
y.register_hook(lambda g: 1 / 0)
with pytest.raises(ZeroDivisionError):
    y.sum().backward()
x.exp().sum().backward()
assert x.grad.tolist() == x.exp().tolist()
print("right")
"""


def test_row_1_an_exception_in_a_hook_reaches_the_program_with_what_windows_lets_us_replace():
    """Windows' table, less its names, which this system's loader does not know: one function is replaced, no other."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", WITH_THE_TABLE_OF_WINDOWS], env=environment, capture_output=True, text=True, timeout=290
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
