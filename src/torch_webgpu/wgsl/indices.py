"""Keeps the indices of a program's own WGSL in range, for compilers that add no checks of their own.

Dawn checks the indices of all shaders of a device or of none, and this package's own kernels have to be without.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_LITERAL = re.compile(r"\s*(?:\d+|0[xX][\da-fA-F]+)[iu]?\s*")
_LAST = (3, 2, 1)
"""The last components of vectors and the last columns of matrices."""


def clamp_indices(text: str, compiles: Callable[[str], bool]) -> str:
    """``text`` with ``v[i]`` as ``v[min(u32(i), n)]``, ``n`` being the last component or column that ``v`` has.

    It contains neither comments nor arrays. What ``v`` is only a compiler knows: a literal beyond its end does not
    compile. Literals stay as they are, for that reason. A text that does not compile comes back as it was.
    """
    bounded: list[str] = []  # the indices so far, the inner ones first; a mark in `rest` stands for each
    rest = text
    while site := _INNERMOST.search(rest):
        head, index, tail = rest[: site.start()], site[1], rest[site.end() :]
        if not _LITERAL.fullmatch(index):
            last = next((n for n in _LAST if compiles(_unmarked(f"{head}[{n}u]{tail}", bounded))), None)
            if last is None:
                return text
            index = f"min(u32({index}), {last}u)"
        rest = f"{head}{_mark(len(bounded))}{tail}"
        bounded.append(index)
    return _unmarked(rest, bounded)


def _mark(k: int) -> str:
    return f"\0{k}\0"


def _unmarked(text: str, bounded: list[str]) -> str:
    for k in reversed(range(len(bounded))):
        text = text.replace(_mark(k), f"[{bounded[k]}]")
    return text
