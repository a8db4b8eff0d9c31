"""What a collective's reduction computes, on tensors of any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Any

import torch

from .shared_board import RefusedError
from .torch_c10d import reduction_name

PAIRS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "avg": torch.add, "max": torch.maximum, "min": torch.minimum, "product": torch.mul,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip
OF_TRUTH = {"sum": "max", "product": "min", "bor": "max", "band": "min"}
"""What reductions of truth values are on the bytes 0 and 1."""
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""What is summed up in a wider dtype, and rounded once."""
OF_MEANS = {torch.uint8: torch.int32, torch.int8: torch.int32, torch.int16: torch.int32}
"""What means are computed in, whose sums the dtype may not hold."""
REDUCED = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
     torch.int64, torch.bool)
)  # fmt: skip
"""The dtypes that the device reduces."""


def reduction(name: str, dtype: torch.dtype) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """What reduces tensors of a dtype. Every rank reduces them in the same order, and gets the same result."""
    if name in ("band", "bor", "bxor") and (dtype.is_floating_point or dtype.is_complex):
        raise RefusedError(f"Cannot use ReduceOp.{name.upper()} with non-integral dtype")
    rounding = None if dtype.is_floating_point else "trunc"  # of means, as with NCCL
    widened = WIDER | OF_MEANS if name == "avg" else WIDER if name in ("sum", "product") else {}
    pair, wide = PAIRS[name], widened.get(dtype, dtype)

    def reduced(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        whole = reduce(pair, [part.to(wide) for part in parts])
        return whole.div(len(parts), rounding_mode=rounding) if name == "avg" else whole

    return reduced


def is_mean_of_integers(reduce_op: Any, dtype: torch.dtype) -> bool:
    """Whether a reduction is a mean of integers."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return False
    return reduction_name(reduce_op) == "avg"


class CollectiveReduction:
    """That of a collective, for tensors of a dtype. RefusedError for what cannot be done, when it is first asked."""

    def __init__(self, reduce_op: Any, dtype: torch.dtype) -> None:
        self._reduce_op, self._dtype = reduce_op, dtype

    @cached_property
    def name(self) -> str:
        """What it is called."""
        name = reduction_name(self._reduce_op)
        if name not in PAIRS:
            raise RefusedError(f"Cannot use ReduceOp.{name.upper()} with webgpu")
        if name == "avg" and self._dtype == torch.bool:
            raise RefusedError(f"Cannot use ReduceOp.AVG with {self._dtype}")
        reduction(self._of(name), self._stored)
        return name

    @cached_property
    def _function(self) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
        return reduction(self._of(self.name), self._stored)

    def _of(self, name: str) -> str:
        return OF_TRUTH.get(name, name) if self._dtype == torch.bool else name

    @property
    def _stored(self) -> torch.dtype:
        return torch.uint8 if self._dtype == torch.bool else self._dtype

    def __call__(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._function(parts)
