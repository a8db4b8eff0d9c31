"""Operations' names as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OVERLOAD = re.compile(r"(?:aten::|aten\.)?([^.+ ]+)(?:\.[^+]*)?")
SHOWN_NAMES = 8


def operator_name(name: str) -> str:
    """``aten.add.Tensor`` and ``aten::add.Tensor`` as ``add``; of a fused operation each part."""
    return "+".join([_OVERLOAD.sub(r"\1", part) for part in name.split("+")])


def fused_name(operators: Sequence[str]) -> str:
    """What a fused operation is called in profiles: its operators, the middle of a long chain counted."""
    names = [name.removeprefix("aten.").removeprefix("aten::").split(".")[0] for name in operators]
    if len(names) <= SHOWN_NAMES:
        return "+".join(names)
    return "+".join([*names[: SHOWN_NAMES - 1], f"{len(names) - SHOWN_NAMES} more", names[-1]])
