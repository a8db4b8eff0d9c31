"""Which reduction a collective asks for: C++ does not tell Python what an operator's argument of ``ReduceOp`` is.

So two ranks of gloo, both in this process, reduce two numbers with it, and the result tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, cached_property, partial, reduce
from typing import Any

import torch

from .shared_board import RefusedError
from .torch_c10d import HashStore, group_of_one_backend, new_gloo, operator, unboxed_work

NUMBERS = 6, 3
OF_FLOATS = {9.0: "sum", 4.5: "avg", 6.0: "max", 3.0: "min", 18.0: "product"}
OF_INTEGERS = {2: "band", 7: "bor", 5: "bxor"}
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


class Probe:
    """Two ranks of gloo in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        store = HashStore()

        def make(rank: int) -> None:
            gloo = new_gloo(store, rank, 2, timedelta(seconds=60), (0, 1), "reductions")
            made[rank] = group_of_one_backend(store, rank, 2, gloo)

        made: list[Any] = [None, None]
        other = threading.Thread(target=make, args=(1,))
        other.start()
        make(0)
        other.join()
        self._groups = made  # whose boxes do not keep them
        self._boxes = [group.boxed() for group in made]

    def begin(self, reduce_op: Any) -> Callable[[], str]:
        """Asks for a reduction's name, and tells how to get it. RefusedError there for what gloo cannot do."""
        try:
            answer = self._asked(reduce_op, torch.float64)
        except RuntimeError as error:
            answer = partial(_raise, error)

        def name() -> str:
            try:
                return OF_FLOATS[answer()]
            except RuntimeError as error:
                if "non-integral" not in str(error):
                    raise RefusedError(str(error)) from None
            return OF_INTEGERS[self._asked(reduce_op, torch.int64)()]

        return name

    def _asked(self, reduce_op: Any, dtype: torch.dtype) -> Callable[[], Any]:
        """Has the two ranks reduce. The result is there when they are done."""
        overload = operator("allreduce_")
        tensors = [torch.tensor([number], dtype=dtype, device="cpu") for number in NUMBERS]
        with self._lock:
            boxes = [overload([t], box, reduce_op, None, True, -1) for t, box in zip(tensors, self._boxes, strict=True)]

        def answer() -> Any:
            for box in boxes:
                unboxed_work(box).wait()
            return tensors[0].item()

        return answer


def _raise(error: Exception) -> Any:
    raise error


@cache
def probe() -> Probe:
    """That of this process."""
    return Probe()


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
    """Whether a reduction is a mean of integers. It is looked up for those alone."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return False
    try:
        return probe().begin(reduce_op)() == "avg"
    except RefusedError:  # gloo says so itself
        return False


class Deferred:
    """The reduction of a collective. Which one it is takes some 100 µs, in which other things can be done."""

    def __init__(self, reduce_op: Any, dtype: torch.dtype) -> None:
        self._asked_name, self._dtype = probe().begin(reduce_op), dtype

    @cached_property
    def name(self) -> str:
        """What it is called. RefusedError for what cannot be done with the dtype."""
        name = self._asked_name()
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
