"""The types of wgpu's header that are parsed at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torch_webgpu.runtime.wgpu_header import ARRAYS, FUNCTIONS, STRUCTS, ffi

POINTERS = [f"{name[: name.index('(')]}(*){name[name.index('(') :]}" for name in FUNCTIONS]
NAMES = [*STRUCTS, *ARRAYS, *POINTERS]
TELL = "[f'{ffi.typeof(name)} {ffi.sizeof(ffi.new(name, 3) if name[-2:] == str([]) else name)}' for name in names]"


def test_types_are_those_that_are_parsed_one_by_one() -> None:
    program = f"from wgpu.backends.wgpu_native import ffi\nnames = {NAMES!r}\nprint(*{TELL}, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert eval(TELL, {"ffi": ffi, "names": NAMES}) == done.stdout.splitlines()
    known = ffi._parsed_types
    assert [str(known[name][0]) for name in FUNCTIONS] == [str(ffi.typeof(pointer)) for pointer in POINTERS]


@pytest.mark.parametrize("name", [*STRUCTS, *ARRAYS])
def test_a_type_can_be_made(name: str) -> None:
    assert ffi.new(name, 2) if name.endswith("[]") else ffi.new(name)


def test_what_a_first_kernel_needs_is_parsed_at_once() -> None:
    """The canary: cffi still looks there, and no type is missing in the lists."""
    program = """
import torch
from torch_webgpu.runtime.wgpu_header import ffi
parsed, parse = [], ffi._parser.parse_type
ffi._parser.parse_type = lambda name: parsed.append(name) or parse(name)
(torch.ones(3, device="webgpu") + 1).cpu()
print(parsed)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TORCH_WEBGPU_IMPLEMENTATION": "wgpu"},
    )
    assert done.stdout.split() == ["[]"], done.stderr
