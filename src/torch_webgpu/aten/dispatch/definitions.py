"""What programs' own operators do, by their names: part of the keys of caches that outlive a process.

A graph names its operators. Those of PyTorch do the same in every process; a program's own operator does what its
source says today.
"""

from __future__ import annotations

from hashlib import sha256

_sources: dict[str, str] = {}


def define(name: str, source: str) -> None:
    """Says what the operator ``name`` does."""
    _sources[name] = source


def forget(name: str) -> None:
    _sources.pop(name, None)


def digest() -> str:
    """Of all that is defined; the same in every process that defines the same. Empty where nothing is."""
    if not _sources:
        return ""
    return sha256(repr(sorted(_sources.items())).encode()).hexdigest()
