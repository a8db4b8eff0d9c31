"""DirectX's shader compiler (DXC), which Direct3D 12 uses only if wgpu-native is told where it is.

The one that Windows has, FXC, knows neither f16, 64-bit integers nor subgroups, and is slow.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import wgpu

LIBRARY = "dxcompiler.dll"


def dxcompiler() -> Path | None:
    """The library of the compiler where it was put beside wgpu's, as wgpu-py has it, or on the ``PATH``.

    Folders that are relative to the working folder are left out: the library is code.
    """
    folders = [Path(wgpu.__file__).parent / "resources", *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    found = (f / LIBRARY for f in folders if f.is_absolute() and (f / LIBRARY).is_file())
    return next(found, None) if sys.platform == "win32" else None
