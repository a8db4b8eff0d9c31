"""C++ may allocate pinned memory for webgpu: ``torch.empty(…, pin_memory=True)``, DistributedDataParallel's Reducer.

The hooks object that PyTorch registers for Python backends has a virtual function that raises. Another function takes
its place, C++'s own: it returns an allocator of the CPU's that nothing else uses (``GetDefaultMobileCPUAllocator``). So
the function that frees a storage tells what was allocated as pinned.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

import torch

_GET_HOOKS = "_ZN2at6detail19getPrivateUse1HooksEv"
_GET_ALLOCATOR = "_ZN3c1028GetDefaultMobileCPUAllocatorEv"
_HEADERS = ("AcceleratorHooksInterface.h", "PrivateUse1HooksInterface.h")
_REPLACED = "getPinnedMemoryAllocator"
_DESTRUCTORS = 2
"""Entries of a table of virtual functions for a destructor, which is the first function."""
_BEFORE = 2
"""Entries before the first function: where the object starts, its type."""
_WORDS = 8
"""Of a ``StorageImpl`` that are looked at: its address, who frees it, its size."""
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


class PinnedAllocator:
    """How to tell the storages of the allocator: word number ``place`` of theirs is ``deleter``."""

    place = 0
    deleter = 0

    def install(self, module: Any) -> None:
        """Lets C++ allocate pinned memory, where that can be done: on Linux and macOS. May be repeated."""
        if not self.deleter and _replace_function():
            self._recognise()

    def _recognise(self) -> None:
        plain, pinned = ([torch.empty(n, dtype=torch.uint8, device="cpu", pin_memory=p) for n in (64, 128)]
                         for p in (False, True))  # fmt: skip
        first, second = map(_words, pinned)
        others = [_words(t) for t in plain]
        address = first.index(pinned[0].data_ptr())
        for place in range(address + 1, min(address + 4, _WORDS)):
            if first[place] and first[place] == second[place] and all(first[place] != words[place] for words in others):
                self.place, self.deleter = place, first[place]
                return

    def has_made(self, t: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in memory of this allocator's."""
        return bool(self.deleter) and _words(t)[self.place] == self.deleter


def _words(t: torch.Tensor) -> list[int]:
    """The first words of a tensor's ``StorageImpl``."""
    return list((ctypes.c_size_t * _WORDS).from_address(t.untyped_storage()._cdata))


def _replace_function() -> bool:
    """Whether the function that raises could be replaced."""
    root = Path(torch.__file__).parent
    headers = [root / "include" / "ATen" / "detail" / name for name in _HEADERS]
    suffix = "dylib" if sys.platform == "darwin" else "so"
    libraries = [root / "lib" / f"{name}.{suffix}" for name in ("libtorch_cpu", "libc10")]
    if sys.platform == "win32" or not all(path.exists() for path in (*headers, *libraries)):
        return False
    torch_cpu, c10 = (ctypes.CDLL(str(path)) for path in libraries)
    get_hooks, get_allocator = getattr(torch_cpu, _GET_HOOKS, None), getattr(c10, _GET_ALLOCATOR, None)
    names = [name for path in headers for name in _virtual_functions(path.read_text("utf-8"))]
    if get_hooks is None or get_allocator is None or _REPLACED not in names:
        return False
    get_hooks.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(get_hooks())
    entries = ctypes.c_void_p * (_BEFORE + _DESTRUCTORS + len(names))
    copied = entries.from_buffer_copy(entries.from_address((table.value or 0) - _BEFORE * _POINTER_BYTES))
    place = _BEFORE + _DESTRUCTORS + names.index(_REPLACED)
    copied[place] = ctypes.cast(get_allocator, ctypes.c_void_p).value
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(copied))  # C++ may ask until the process ends
    table.value = ctypes.addressof(copied) + _BEFORE * _POINTER_BYTES
    return True


def _virtual_functions(header: str) -> list[str]:
    """The names of the virtual functions that a class declares, in order, without its destructor."""
    names = re.findall(r"^ *virtual [^({]*?(~?\w+)\(", header, re.MULTILINE)
    return [name for name in names if not name.startswith("~")]


PINNED = PinnedAllocator()
