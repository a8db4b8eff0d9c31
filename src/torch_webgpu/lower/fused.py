"""Fused operations: what they are called, and one of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch_webgpu.ir.graph import Body, Operation, Spec

MAX_OPERATIONS = 4096
SHOWN_NAMES = 8


def fused_name(operators: Sequence[str]) -> str:
    """What a fused operation is called in profiles: its operators, the middle of a long chain counted."""
    names = [name.removeprefix("aten.").removeprefix("aten::").split(".")[0] for name in operators]
    if len(names) <= SHOWN_NAMES:
        return "+".join(names)
    return "+".join([*names[: SHOWN_NAMES - 1], f"{len(names) - SHOWN_NAMES} more", names[-1]])


_operations: OrderedDict[Any, Operation] = OrderedDict()


def operation(name: str, specs: tuple[Spec, ...], n_outputs: int, body: Body, kinds: tuple[str, ...]) -> Operation:
    """The fused operation with this content. Plans share it, and with it what it was lowered to."""
    key = (specs, n_outputs, body, kinds)
    found = _operations.get(key)
    if found is None:
        found = _operations[key] = Operation(name, specs, n_outputs, body, kinds)
        if len(_operations) > MAX_OPERATIONS:
            _operations.popitem(last=False)
    else:
        _operations.move_to_end(key)
    return found
