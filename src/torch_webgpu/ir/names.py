"""Operations' names as people write them."""

from __future__ import annotations

import re

_OVERLOAD = re.compile(r"(?:aten::|aten\.)?([^.+ ]+)(?:\.[^+]*)?")


def operator_name(name: str) -> str:
    """``aten.add.Tensor`` and ``aten::add.Tensor`` as ``add``; of a fused operation each part."""
    return "+".join([_OVERLOAD.sub(r"\1", part) for part in name.split("+")])
