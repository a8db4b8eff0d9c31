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
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_TYPES: Any = torch._C._autograd.DeviceType
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
"""The array of device guards by device type, as Linux's and macOS's compilers spell it."""
_ENTRIES_BEFORE = 2
"""Of a table of virtual functions before the first: where the object starts, its type."""
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


def let_exceptions_pass() -> bool:
    """Replaces virtual functions of the registered guard; whether that was possible, as on Linux and macOS.

    Which ones they are is read off the header that PyTorch comes with. ``exchangeStream``, the one that destructors
    call, becomes the CPU guard's, which does nothing.
    """
    root = Path(torch.__file__).parent
    header = root / "include" / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h"
    guards = _guards() if header.exists() else None
    if guards is None:
        return False
    functions = re.findall(r"^ *virtual [^({]*?(\w+)\(", header.read_text(), re.MULTILINE)
    ours, cpu = guards[int(_TYPES.PrivateUse1)], guards[int(_TYPES.CPU)]
    answers = _answers()
    if not ours or not cpu or not {"exchangeStream", *answers} <= set(functions):
        return False
    entries = ctypes.c_void_p * (_ENTRIES_BEFORE + len(functions) + 2)  # of a destructor there are up to two
    table = ctypes.c_void_p.from_address(ours)
    copied = entries.from_buffer_copy(entries.from_address((table.value or 0) - _ENTRIES_BEFORE * _POINTER_BYTES))
    exchange = functions.index("exchangeStream")
    theirs = (ctypes.c_void_p.from_address(cpu).value or 0) + exchange * _POINTER_BYTES
    copied[_ENTRIES_BEFORE + exchange] = ctypes.c_void_p.from_address(theirs).value
    for name, address in answers.items():
        copied[_ENTRIES_BEFORE + functions.index(name)] = address
    _keep(copied)
    table.value = ctypes.addressof(copied) + _ENTRIES_BEFORE * _POINTER_BYTES
    return True


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
    folder = Path(torch.__file__).parent / "lib"
    library = folder / ("libc10.dylib" if sys.platform == "darwin" else "libc10.so")
    if sys.platform == "win32" or not library.exists():
        return None
    try:
        return (ctypes.c_void_p * len(_TYPES.__members__)).in_dll(ctypes.CDLL(str(library)), _GUARDS)
    except ValueError:
        return None


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
