"""For every row of the compatibility matrix a call with sensible arguments, as an expression.

In it ``f`` is what the name is, ``m`` its module, ``t`` a 4×4 float32 tensor on the target and ``c`` its copy on the
CPU, ``here`` the target's device, ``folder`` an empty folder, and ``x`` what :mod:`.world` has.
"""

from __future__ import annotations

from .devices import BY_LEAF, DEVICES
from .distributed import DISTRIBUTED
from .pytorch import PYTORCH

TOGETHER = frozenset(f"torch.distributed.{name}" for name in DISTRIBUTED)
"""Those that two processes call at the same time; in them ``rank`` is 0 or 1."""


def example(name: str) -> str | None:
    """The expression for a name; None if there is none."""
    module, _, leaf = name.rpartition(".")
    if name in TOGETHER:
        return DISTRIBUTED[leaf]
    for table in (DEVICES, PYTORCH):
        if leaf in table.get(module, {}):
            return table[module][leaf]
    return BY_LEAF.get(leaf)
