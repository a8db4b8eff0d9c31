"""Whose code is calling: the user's, which is translated, or a library's, which sees the device that is there.

User code is what was not installed: a script, the modules beside it, a notebook; and the installed packages that
were named (``--package``). A module that :mod:`.rewrite` has been through carries a mark in its globals; code that
has no file (a prompt, ``python -c``) belongs to ``__main__``.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from torch_webgpu.caches import memoized

MARK = "__torch_translation__"
"""The name in a translated module's globals of what its rewritten expressions call."""

_INSTALLED = tuple(
    os.path.realpath(path) + os.sep
    for path in {*(sysconfig.get_paths().get(key, "") for key in ("stdlib", "platstdlib", "purelib", "platlib"))}
    if path
)
_OWN = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class Packages:
    """The installed packages that are translated like the user's own code, by their import names."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)

    def is_user(self, module: str, file: str | None) -> bool:
        """Whether a module of this name and file is the user's."""
        return module.partition(".")[0] in self.names or (file is not None and not is_installed(file))


@memoized("files of callers", 4096)
def is_installed(file: str) -> bool:
    """Whether a source file belongs to Python, to an installed package, or to this one."""
    path = os.path.realpath(file)
    return path.startswith((*_INSTALLED, _OWN)) or any(folder in path for folder in _FOLDERS)


def is_user(names: Mapping[str, Any]) -> bool:
    """Whether the module with these globals is translated."""
    return MARK in names or names.get("__name__") == "__main__"


def user_frame() -> FrameType | None:
    """The innermost frame of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user(frame.f_globals):
        frame = frame.f_back
    return frame


def location() -> str:
    """Where the user's code is at the moment: ``file:line``; "" if nothing of it is running."""
    frame = user_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
