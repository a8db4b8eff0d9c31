"""The dispatcher's table of an operator's kernels, where a C++ kernel of another device can serve this one.

PyTorch lets Python register functions of Python alone. For view operators that costs three times what the operator
does: each argument becomes a Python object, the function calls the CPU's kernel, and all of them are turned back. So
the entry of this device is made equal to the CPU's, whose kernel never touches the data. What was registered for this
device stays registered: PyTorch computes the entry anew from that whenever something else is registered for it.

Nothing here is known by name or version. Entries are written only if the table is, for three devices, what PyTorch says
of these devices' kernels; else everything stays as it is.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch._ops import OpOverload

_WORD_BYTES = 8
_OBJECT_WORDS = object.__basicsize__ // _WORD_BYTES
"""Of what every Python object begins with."""
_ENTRY_WORDS = 5
"""Of a KernelFunction: functor; boxed, unboxed and symbolic function; tokens of those that hold it."""
_KERNEL_WORDS = 4
"""Of these, without the tokens, which are the entry's own."""
_WORDS_BEFORE = 128
"""Where an operator's table begins at the latest, from where the operator does: a fraction of the table's own size."""
_NODE_WORDS = 2
"""How far an item is from the start of its node in a ``std::list``."""
_KNOWN = ("CPU", "Meta", "PrivateUse1")
"""Devices by whose kernels the table is recognised."""

Kernel = tuple[int, ...]


def share_kernel(overload: OpOverload, source: str = "CPU", target: str = "PrivateUse1") -> bool:
    """Lets ``target``'s tensors have ``source``'s kernel, a C++ function, without a call of Python.

    For each device ``overload`` has a kernel of its own. Whether that was possible; the caller has registered another
    way for ``target`` that does the same. ``overload`` must not be in use by other threads.
    """
    at = _entry(overload, target)
    if at is None:
        return False
    kernel = torch.library.get_kernel(overload, source)
    # It counts as a holder of the functor, and is never freed: the entry takes its place, and gives it up when PyTorch
    # computes the entry anew.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kernel))
    _words(at, _KERNEL_WORDS)[:] = _kernel_of(kernel)
    return True


def shares_kernel(overload: OpOverload, source: str = "CPU", target: str = "PrivateUse1") -> bool:
    """Whether the table has the same kernel for both devices."""
    entries = [_entry(overload, key) for key in (source, target)]
    kernels = [tuple(_words(at, _KERNEL_WORDS)) for at in entries if at is not None]
    return len(kernels) == len(entries) and kernels[0] == kernels[1]


def _entry(overload: OpOverload, key: str) -> int | None:
    """The address of a device's entry in an operator's table; None where the table is not what is expected."""
    if ctypes.sizeof(ctypes.c_void_p) != _WORD_BYTES:
        return None
    kernels = {name: torch.library.get_kernel(overload, name) for name in _KNOWN}
    handle = kernels["CPU"].op_handle
    expected = {name: _kernel_of(kernel) for name, kernel in kernels.items()}
    place = _cpp_object(handle)
    if place is None or None in expected.values():
        return None
    operator, node = _words(place, 2)
    if operator - node != _NODE_WORDS * _WORD_BYTES:
        return None
    head = list(_words(operator, _WORDS_BEFORE + _KERNEL_WORDS))
    cpu = expected["CPU"]
    first = next((k for k in range(_WORDS_BEFORE) if tuple(head[k : k + _KERNEL_WORDS]) == cpu), None)
    if first is None:
        return None
    keys: Any = torch._C.DispatchKey
    entries = {
        name: operator + _WORD_BYTES * (first + _ENTRY_WORDS * (int(getattr(keys, name)) - int(keys.CPU)))
        for name in {*_KNOWN, key}
    }
    for name in _KNOWN:
        # Of "PrivateUse1" it says what is registered, which may have been replaced here before.
        if tuple(_words(entries[name], _KERNEL_WORDS)) not in {expected[name], cpu if name == "PrivateUse1" else None}:
            return None
    return entries[key]


def _kernel_of(kernel: Any) -> Kernel | None:
    """What an entry of this kernel holds; None where pybind11's objects are not what is expected."""
    place = _cpp_object(kernel)
    return None if place is None else tuple(_words(place, _KERNEL_WORDS))


def _cpp_object(wrapper: Any) -> int | None:
    """The address of what an object of pybind11's wraps: its first word, and, of what holds that, the first one."""
    value, held = _words(id(wrapper) + _OBJECT_WORDS * _WORD_BYTES, 2)
    return value if value and value == held and not value % _WORD_BYTES else None


def _words(address: int, count: int) -> Any:
    return (ctypes.c_uint64 * count).from_address(address)
