"""How the contributions of a reduction meet: monoids over small states, written as expressions over the op table.

A contribution of dtype ``D`` is *lifted* into a state of one or more scalars; states are *merged* in any order and
grouping (lanes, trees, splits). What a reduction's epilogue sees as ``acc`` leaves are the scalars of the final states,
one :class:`Combine` after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from torch_webgpu.dtypes import BY_NAME

from .expr import Expr
from .ops import ops

State = tuple[Expr, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """One pass over a row whose elements are all at hand: a sum or a maximum, of what earlier rounds may decide.

    ``value(x, *results)`` is what an element gives. ``share(merged, count)`` is what a thread hands on of what its
    elements came to.
    """

    value: Callable[..., Expr]
    identity: float
    merge: Callable[[Expr, Expr], Expr]
    share: Callable[[Expr, Expr], Expr] = lambda merged, count: merged


@dataclass(frozen=True)
class Rounds:
    """The same state as a combine's in rounds; ``state(count, *results)`` makes it of their results."""

    rounds: tuple[Round, ...]
    state: Callable[..., State]


@dataclass(frozen=True)
class Combine:
    """A monoid: the dtypes and the identity of its state for contributions of a dtype, how states are made and merged.

    A position is a point's row-major number within the reduced dimensions, u32.
    """

    dtypes: Callable[[str], tuple[str, ...]]
    identity: Callable[[str], State]
    lift: Callable[[Expr, Expr], State]
    merge: Callable[[State, State], State]
    ordered: bool = False
    """Whether the state knows positions, so that the reduced dimensions must be numbered row-major."""
    batch: Callable[[Sequence[Expr]], State] | None = None
    """The state of several contributions, where that is cheaper than lifting and merging each."""
    rounds: Rounds | None = None
    """How it is computed of a whole row at once, where that is cheaper than merging states."""

    def gather(self, values: Sequence[Expr], positions: Sequence[Expr]) -> State:
        """The state of several contributions."""
        if self.batch is not None and len(values) > 1:
            return self.batch(values)
        return pairwise(self.merge, [self.lift(x, at) for x, at in zip(values, positions, strict=True)])


def pairwise(merge: Callable[[T, T], T], items: Sequence[T]) -> T:
    """``items`` merged as a balanced tree, in order."""
    if len(items) == 1:
        return items[0]
    half = len(items) // 2
    return merge(pairwise(merge, items[:half]), pairwise(merge, items[half:]))


def total(values: Sequence[Expr]) -> Expr:
    return pairwise(ops.add, values)


def _own(dtype: str) -> tuple[str, ...]:
    return (dtype,)


def _scalar(identity: Callable[[str], float | int | bool], merge: str) -> Combine:
    """A state of one scalar that a row of the op table merges."""
    combine = getattr(ops, merge)
    return Combine(
        _own,
        lambda d: (ops.constant(identity(d), d),),
        lambda x, at: (x,),
        lambda a, b: (combine(a[0], b[0]),),
    )


def lowest(dtype: str) -> float | int | bool:
    """What no value of ``dtype`` is below."""
    row = BY_NAME[dtype]
    if row.is_integer:
        return torch.iinfo(row.torch).min
    return False if dtype == "bool" else float("-inf")


def highest(dtype: str) -> float | int | bool:
    """What no value of ``dtype`` is above."""
    row = BY_NAME[dtype]
    if row.is_integer:
        return torch.iinfo(row.torch).max
    return True if dtype == "bool" else float("inf")


def _extreme(better: str, worst: Callable[[str], float | int | bool], last: bool = False) -> Combine:
    """(value, position) of the first or the last of the extreme values; a NaN beats every number, as on the CPU."""
    beats = getattr(ops, better)
    nowhere = 0 if last else 0xFFFFFFFF

    def merge(a: State, b: State) -> State:
        (x, i), (y, j) = a, b
        x_nan, y_nan = ops.isnan(x), ops.isnan(y)
        tie = ops.eq(x, y) | (x_nan & y_nan)
        take_b = (~x_nan & (y_nan | beats(y, x))) | (tie & ((j > i) if last else (j < i)))
        return ops.where(take_b, y, x), ops.where(take_b, j, i)

    return Combine(
        lambda d: (d, "u32"),
        lambda d: (ops.constant(worst(d), d), ops.constant(nowhere, "u32")),
        lambda x, at: (x, at),
        merge,
        ordered=True,
    )


def _constants(dtype: str, *values: float) -> State:
    return tuple([ops.constant(value, dtype) for value in values])


def _welford() -> Combine:
    """(mean, sum of squared deviations, count), merged by Chan, Golub & LeVeque's formula (1979)."""

    def merge(a: State, b: State) -> State:
        (mean_a, m2_a, n_a), (mean_b, m2_b, n_b) = a, b
        n = n_a + n_b
        delta = mean_b - mean_a
        share = n_b / n
        mean = mean_a + delta * share
        m2 = m2_a + m2_b + delta * delta * (n_a * share)
        # Where a side is empty the formula would turn an infinite mean into NaN.
        a_empty, b_empty = ops.eq(n_a, 0), ops.eq(n_b, 0)

        def known(value: Expr, of_a: Expr, of_b: Expr) -> Expr:
            return ops.where(b_empty, of_a, ops.where(a_empty, of_b, value))

        return known(mean, mean_a, mean_b), known(m2, m2_a, m2_b), n

    def batch(xs: Sequence[Expr]) -> State:
        mean = total(xs) / float(len(xs))
        return mean, total([(x - mean) * (x - mean) for x in xs]), ops.like(mean, len(xs))

    # Each thread divides its part of the sum, which may overflow where the mean does not.
    mean = Round(lambda x: x, 0, ops.add, lambda merged, count: merged / count)
    m2 = Round(lambda x, mean: (x - mean) * (x - mean), 0, ops.add)
    return Combine(
        lambda d: (d, d, d),
        lambda d: _constants(d, 0, 0, 0),
        lambda x, at: (x, *_constants(x.dtype, 0, 1)),
        merge,
        batch=batch,
        rounds=Rounds((mean, m2), lambda count, mean, m2: (mean, m2, count)),
    )


def finite_or_zero(top: Expr) -> Expr:
    """What to subtract from numbers up to ``top``: infinities must not meet in a difference."""
    return ops.where(ops.isinf(top), ops.like(top, 0), top)


def _logsumexp() -> Combine:
    """(maximum, sum of exp(x - maximum)) in one pass: Milakov & Gimelshein, "Online normalizer calculation" (2018)."""

    def merge(a: State, b: State) -> State:
        (max_a, sum_a), (max_b, sum_b) = a, b
        # Equal infinities must not meet in a difference.
        gap = ops.where(ops.eq(max_a, max_b), ops.like(max_a, 0), abs(max_a - max_b))
        shrink = ops.exp(-gap)
        a_leads = max_a >= max_b
        low, high = ops.where(a_leads, sum_b, sum_a), ops.where(a_leads, sum_a, sum_b)
        return ops.larger(max_a, max_b), high + low * shrink

    def batch(xs: Sequence[Expr]) -> State:
        top = pairwise(ops.larger, xs)
        # Infinities' own exponentials are right.
        return top, total([ops.exp(x - finite_or_zero(top)) for x in xs])

    # A NaN need not be the maximum: the sum becomes NaN, too.
    largest = Round(lambda x: x, float("-inf"), ops.larger)
    exponentials = Round(lambda x, top: ops.exp(x - finite_or_zero(top)), 0, ops.add)
    return Combine(
        lambda d: (d, d),
        lambda d: _constants(d, float("-inf"), 0),
        lambda x, at: (x, ops.like(x, 1)),
        merge,
        batch=batch,
        rounds=Rounds((largest, exponentials), lambda count, top, total: (top, total)),
    )


COMBINES: dict[str, Combine] = {
    "sum": _scalar(lambda d: 0, "add"),
    "prod": _scalar(lambda d: 1, "mul"),
    "max": _scalar(lowest, "maximum"),
    "min": _scalar(highest, "minimum"),
    "any": _scalar(lambda d: False, "logical_or"),
    "all": _scalar(lambda d: True, "logical_and"),
    "xor": _scalar(lambda d: 0, "bitwise_xor"),
    "argmax": _extreme("gt", lowest),
    "argmin": _extreme("lt", highest),
    "cummax": _extreme("gt", lowest, last=True),
    "cummin": _extreme("lt", highest, last=True),
    "welford": _welford(),
    "logsumexp": _logsumexp(),
}


def accumulators(values: tuple[Expr, ...], combine: tuple[str, ...]) -> list[str]:
    """The dtypes of the ``acc`` leaves of a reduction; MissingKindError where values of a dtype do not combine."""
    dtypes = [COMBINES[name].dtypes(value.dtype) for value, name in zip(values, combine)]
    for name, state in zip(combine, dtypes):
        leaves = tuple([ops.acc(k, d) for k, d in enumerate(state)])
        COMBINES[name].merge(leaves, leaves)
    return [d for state in dtypes for d in state]
