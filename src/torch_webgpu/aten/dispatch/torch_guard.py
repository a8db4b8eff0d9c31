"""The device guard of webgpu as PyTorch's C++ sees it, made of functions that raise nothing.

The guard of a Python backend (PythonDeviceGuard in torch/csrc/acc/Module.cpp) answers by calling Python through
pybind11. That fails with an error pending, and on its way runs the handlers of signals, which may raise; and it is
called where neither may be: in a destructor of the autograd engine while an exception of a hook or a kernel unwinds
(InlineStreamGuard in c10/core/impl), and in functions that are ``noexcept`` (``Node::add_input_metadata``). The process
would end there. See also https://github.com/pytorch/pytorch/issues/161129.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_TYPES: Any = torch._C._autograd.DeviceType
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


@dataclass(frozen=True)
class CxxAbi:
    """How a platform's C++ compiler spells the array of device guards, and lays out a table of virtual functions.

    ``entries_before``: those before the first function. ``destructors``: the entries of the destructor, which is last.
    ``returns_in_registers``: whether a function returns a small object with a constructor in registers, as a C
    function does that returns a struct; else through a pointer that its caller hands over.
    """

    library: str
    guards: str
    entries_before: int
    destructors: int
    returns_in_registers: bool


_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
# https://itanium-cxx-abi.github.io/cxx-abi/abi.html#vtable-components: where the object starts, and its type.
_ITANIUM = CxxAbi("libc10.so", _GUARDS, entries_before=2, destructors=2, returns_in_registers=True)
CXX_ABIS = {
    "linux": _ITANIUM,
    "darwin": CxxAbi("libc10.dylib", _GUARDS, entries_before=2, destructors=2, returns_in_registers=True),
    "win32": CxxAbi(
        "c10.dll",
        "?device_guard_impl_registry@impl@c10@@3V?$array@U?$atomic@PEBUDeviceGuardImplInterface@impl@c10@@@std@@"
        "$0BF@@std@@A",  # $0BF@: of 21 entries
        entries_before=1, destructors=1, returns_in_registers=False,
    ),
}  # fmt: skip
"""By ``sys.platform``; any other has Linux's."""


def let_exceptions_pass() -> bool:
    """Replaces virtual functions of the registered guard; whether that was possible.

    Which ones they are is read off the header that PyTorch comes with. ``exchangeStream``, the one that destructors
    call, becomes the CPU guard's, which does nothing. That alone lets exceptions pass; the other answers, which a
    handler of signals would otherwise run in, are given where C can return what C++ expects.
    """
    abi = _abi()
    root = Path(torch.__file__).parent
    header = root / "include" / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h"
    guards = _guards() if header.exists() else None
    if guards is None:
        return False
    functions = virtual_functions(header.read_text("utf-8"))
    ours, cpu = guards[int(_TYPES.PrivateUse1)], guards[int(_TYPES.CPU)]
    answers = _answers() if abi.returns_in_registers else {}
    if not ours or not cpu or not {"exchangeStream", *answers} <= set(functions):
        return False
    entries = ctypes.c_void_p * (abi.entries_before + len(functions) - 1 + abi.destructors)
    table = ctypes.c_void_p.from_address(ours)
    copied = entries.from_buffer_copy(entries.from_address((table.value or 0) - abi.entries_before * _POINTER_BYTES))
    exchange = functions.index("exchangeStream")
    theirs = (ctypes.c_void_p.from_address(cpu).value or 0) + exchange * _POINTER_BYTES
    copied[abi.entries_before + exchange] = ctypes.c_void_p.from_address(theirs).value
    for name, address in answers.items():
        copied[abi.entries_before + functions.index(name)] = address
    _keep(copied)
    table.value = ctypes.addressof(copied) + abi.entries_before * _POINTER_BYTES
    return True


def virtual_functions(header: str) -> list[str]:
    """The names of a C++ interface's virtual functions in the order of their table, the destructor last."""
    return re.findall(r"^ *virtual [^({]*?(\w+)\(", header, re.MULTILINE)


def stand_in(absent: str, present: str) -> Callable[[], None] | None:
    """Lets C++ take the device type ``absent`` as an argument, by giving it the guard of ``present``.

    What C++ asks it for is an index, where none was given (``x.to("cuda")``). Returns what undoes it; None where that
    cannot be done, and a device needs its index then.
    """
    guards = _guards()
    if guards is None:
        return None
    types = {name.lower(): int(number) for name, number in _TYPES.__members__.items()} | {
        torch.utils.backend_registration._privateuse1_backend_name: int(_TYPES.PrivateUse1)
    }
    slot, before = types[absent], guards[types[absent]]
    guards[slot] = guards[types[present]]
    return partial(guards.__setitem__, slot, before)


def _guards() -> Any:
    """The device guards by device type, as an array of addresses; None where their place is not known."""
    abi = _abi()
    library = Path(torch.__file__).parent / "lib" / abi.library
    if not library.exists():
        return None
    try:
        return (ctypes.c_void_p * len(_TYPES.__members__)).in_dll(ctypes.CDLL(str(library)), abi.guards)
    except ValueError:
        return None


def _abi() -> CxxAbi:
    return CXX_ABIS.get(sys.platform, _ITANIUM)


def _answers() -> dict[str, int]:
    """The addresses of C functions that answer what the guard is asked: the type, the first device, its only stream.

    What they call is C, too: in a function of Python's the handlers of signals could run. cffi's compiler of
    declarations takes long to import, so the types are put together here.
    """
    cffi: Any = import_module("_cffi_backend")  # which has no stubs
    byte, wide = cffi.new_primitive_type("int8_t"), cffi.new_primitive_type("int64_t")
    device, stream = cffi.new_struct_type("struct Device"), cffi.new_struct_type("struct Stream")
    cffi.complete_struct_or_union(device, [("type", byte, -1), ("index", byte, -1)])
    cffi.complete_struct_or_union(stream, [("device", device, -1), ("id", wide, -1)])
    number = int(_TYPES.PrivateUse1)
    first = cffi.newp(cffi.new_pointer_type(device), (number, 0))
    only = cffi.newp(cffi.new_pointer_type(stream), {"device": first[0], "id": 0})
    any_pointer = cffi.new_pointer_type(cffi.new_void_type())
    addresses: dict[str, int] = {}
    for names, kind, answer in (
        (("type",), byte, number),
        (("getDevice", "exchangeDevice"), device, first[0]),
        (("getStream",), stream, only[0]),
    ):
        # Of the arguments the first is enough; ``dict.get`` takes it for the default.
        signature = cffi.new_function_type((any_pointer,), kind, False)
        function = cffi.callback(signature, partial({None: answer}.get, None))
        _keep(function, first, only)
        addresses |= dict.fromkeys(names, int(cffi.cast(cffi.new_primitive_type("uintptr_t"), function)))
    return addresses


def _keep(*things: object) -> None:
    """Never frees them: C++ may ask the guard until the process ends."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
