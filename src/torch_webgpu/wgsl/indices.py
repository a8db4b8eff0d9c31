"""Keeps the indices of a program's own WGSL in range, for compilers that add no checks of their own.

Dawn checks the indices of all shaders of a device or of none, and this package's own kernels have to be without.
"""

from __future__ import annotations

from collections.abc import Callable

from .tokens import is_integer, is_trivia, tokens

_LAST = (3, 2, 1)
"""The last components of vectors and the last columns of matrices."""


def clamp_indices(text: str, compiles: Callable[[str], bool]) -> str:
    """``text`` with ``v[i]`` as ``v[min(u32(i), n)]``, ``n`` being the last component or column that ``v`` has.

    It contains no arrays. What ``v`` is only a compiler knows: a literal beyond its end does not compile. Literals stay
    as they are, for that reason. A text that does not compile comes back as it was.
    """
    sequence = tokens(text)
    opened: list[int] = []
    for k, token in enumerate(sequence):
        if token == "[":
            opened.append(k + 1)
        elif token == "]" and opened:
            # The indices within this one come first, and are bounded by now.
            start = opened.pop()
            index = sequence[start:k]
            if not _is_literal(index):
                last = next((n for n in _LAST if compiles(_with(sequence, start, k, f"{n}u"))), None)
                if last is None:
                    return text
                sequence[start:k] = [f"min(u32({''.join(index)}), {last}u)", *[""] * (k - start - 1)]
    return "".join(sequence)


def _is_literal(index: list[str]) -> bool:
    values = [token for token in index if token and not is_trivia(token)]
    return not values or (len(values) == 1 and is_integer(values[0]))


def _with(sequence: list[str], start: int, end: int, index: str) -> str:
    return "".join([*sequence[:start], index, *sequence[end:]])
