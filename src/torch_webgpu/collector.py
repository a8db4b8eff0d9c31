"""Python's garbage collector, which waits while modules are imported.

They allocate much and leave little, and each time the collector looks at all that PyTorch has imported: 0.1 s.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Has the collector wait."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
