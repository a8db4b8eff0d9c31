"""Which of PyTorch's decompositions serve operators without a kernel.

PyTorch registers over a thousand; any of them is right, but one may end in the operator it started from (a reference
implemented through ``torch.foo``). :func:`decomposed` notices that and gives up, and the caller goes to the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from .results import write
from .torch_abi import aten, functional_of, is_inplace

# Decompositions that are a poor trade here, or wrong, with the reason.
EXCLUDED: dict[str, str] = {
    "aten::_to_copy": "the composite kernel (empty_strided + copy_) is one operation",
    "aten::copy": "functionalisation only",
    "aten::nonzero": "data-dependent",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "it gives weights where the CPU gives logarithms of sums",
}

# Operators that PyTorch implements per device and has no decomposition for, by others of its operators.
OURS: dict[OpOverload, Callable[..., Any]] = {
    aten._efficientzerotensor.default: torch.zeros,
    aten._weight_norm_interface_backward.default: aten._weight_norm_differentiable_backward.default,
    # Memory returns to the pool when the one queue of its adapter is past its last use, whatever the stream.
    aten.record_stream.default: lambda tensor, stream: None,
}

_active = threading.local()


def decomposition_of(op: OpOverload) -> Callable[..., Any] | None:
    """PyTorch's decomposition of ``op``, or ``op`` by way of its functional form; None when there is neither."""
    if op._schema.name in EXCLUDED:
        return None
    found = OURS.get(op) or decomposition_table.get(op)
    if found is not None:
        return found
    functional = functional_of(op)
    if functional is None or functional is op:
        return None
    return _through_functional(op, functional)


def _through_functional(op: OpOverload, functional: OpOverload) -> Callable[..., Any]:
    """``op`` (in-place or out=) as the functional overload and a copy into the outputs."""
    names = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_inplace(op):
            targets = [args[0]]
        else:
            targets = [kwargs.pop(name) for name in names]
        results = functional(*args, **kwargs)
        for target, result in zip(targets, results if isinstance(results, (tuple, list)) else [results], strict=True):
            write(result, target)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return run


def decomposed(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``op`` by decomposition; NotImplemented when it has none or its decomposition comes back to it."""
    active: set[OpOverload] = _active.__dict__.setdefault("ops", set())
    if op in active:
        return NotImplemented
    decomposition = decomposition_of(op)
    if decomposition is None:
        return NotImplemented
    active.add(op)
    try:
        return decomposition(*args, **kwargs)
    finally:
        active.discard(op)
