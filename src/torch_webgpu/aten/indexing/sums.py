"""Sums through indices without atomics: points are put in the order of what they name, then summed in that order.

In deterministic mode all sums are taken so. Else only those are that :func:`pays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.torch_abi import is_deterministic
from torch_webgpu.engine.layouts import spec_of
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.indexed import IndexGeometry, lower_read
from torch_webgpu.kernels.indexing.sum_by_key import (
    MOST_INDICES,
    lower_order,
    lower_rank,
    lower_sum_by_key,
    moves_in_fours,
)
from torch_webgpu.layout import contiguous_strides, overlaps_itself

SUMMED = (torch.float32, torch.float16, torch.bfloat16)

# What both ways cost, in picoseconds. An H100 adds 1.2 million rows of 128 float32 to 170,000 with atomics in 3,203 us,
# and 16,384 rows of 384 to 65 in 772 us: 21 ps an element where 7 points meet, 123 ps where 252 do. The floor of the
# first is 790 MB, about 0.3 ms: rows read once, 4 bytes an element; each row of the result that has points read and
# written once. Ordering moves about 100 bytes a point, most of it in the 32 bytes of memory that each of its scattered
# accesses to 4 bytes takes. The parts of sums that chunks keep are 1 / 32 (short rows: 1 / 8) of the rows, moved twice.
ATOMIC_PS, MEETING_PS = 18, 0.4
"""An element added with atomics; and for each point, on average, that meets there."""
ELEMENT_PS, POINT_PS, ROW_PS = 3, 60, 20
"""Without atomics: an element added, a point ordered, a row of the result counted."""
LAUNCHES_PS = 40_000_000
"""About ten launches more, of which each waits for the one before it."""
NARROWEST = 8
"""Floats of a row. Of narrower ones a thread would move less than it moves to put the row in order."""


def pays(dtype: torch.dtype, points: int, width: int, rows: int, indices: int = 1) -> bool:
    """Whether ordering ``points`` pays, to add as many rows of ``width`` elements to ``rows``, which so many index
    tensors name.
    """
    if dtype not in SUMMED or width < NARROWEST or not rows or indices > MOST_INDICES:
        return False
    atomics = points * width * (ATOMIC_PS + MEETING_PS * points / rows)
    return atomics > LAUNCHES_PS + points * (width * ELEMENT_PS + POINT_PS) + rows * ROW_PS


class Order(NamedTuple):
    """Points in the order of the numbers, from 1 on, of what they name; of those that name nothing it is 0.

    ``keys`` (n), int32: the numbers. ``places`` (n), int32 or int64: where in their own order the points are.
    """

    keys: torch.Tensor
    places: torch.Tensor


def add_in_order(target: torch.Tensor, terms: torch.Tensor, order: Order, dims: int = 0) -> None:
    """Adds each of ``terms`` (n, …), in ``order``, to what it names: to rows of ``target``, numbered along its first
    ``dims`` dimensions, or with 0 to its elements. ``terms`` lie in another storage. Sums are taken in float32 or
    complex64, and rounded once.

    In deterministic mode the order of additions follows from the keys: chunks of what has one key, one point after the
    other, and then the sums of the chunks.
    """
    dims = dims or target.dim()
    if target.is_complex():
        target, terms = torch.view_as_real(target), torch.view_as_real(terms.resolve_conj())
    count, features = prod(target.shape[:dims]), prod(target.shape[dims:])
    if not len(order.keys) or not count or not features:
        return
    rows, sums = terms.reshape(len(order.keys), features), as_matrix(target, count, features)
    direct = sums is not None
    if sums is None:
        sums = torch.zeros((count, features), dtype=torch.float32, device=target.device)
    record_kernel("sum_by_key", [sums, rows, *order], [sums], Extern(lower_sum_by_key))
    if not direct:
        target.add_(sums.view(target.shape))


def as_matrix(t: torch.Tensor, count: int, features: int) -> torch.Tensor | None:
    """``t`` as (count, features), sharing its storage; None where no such matrix has strides, where elements share
    memory, or elements of half types words with others: sums are added to them row by row.
    """
    if overlaps_itself(tuple(t.shape), t.stride()):
        return None
    try:
        matrix = t.view(count, features)
    except RuntimeError:
        return None
    return matrix if matrix.dtype == torch.float32 or moves_in_fours(spec_of(matrix)) else None


def order_of(name: str, count: int, geometry: IndexGeometry, indices: Sequence[torch.Tensor]) -> Order:
    """The order of the points of ``geometry``, whose data are the numbers 1 to ``count``. ``name``: the operator's.

    Counting how often each number occurs tells where its points go. It moves a fifth of the bytes that sorting does, in
    a third of the launches, but the points of one get there in any order: in deterministic mode they are sorted.
    """
    n, device = prod(geometry.shape), indices[0].device
    if max(count, n) > torch.iinfo(torch.int32).max - 2:
        raise NotImplementedError(f"{name}: {n} points in the order of {count} places, which int32 cannot number")
    if is_deterministic():
        numbers = torch.arange(1, count + 1, dtype=torch.int32, device=device)
        keys = numbers.new_empty(n)
        geometry = replace(geometry, strides=(*geometry.strides, contiguous_strides(geometry.shape)))
        record_kernel(name, [numbers, *indices], [keys], Extern(lower_read, (geometry,)))
        return Order(*keys.sort(stable=True))
    counts = torch.zeros(count + 2, dtype=torch.int32, device=device)
    keys, ranks, ordered, places = (counts.new_empty(n) for _ in range(4))
    record_kernel(name, [counts, *indices], [counts, keys, ranks], Extern(lower_rank, (geometry,)))
    starts = counts.cumsum(0, dtype=torch.int32)
    record_kernel("order_by_key", [keys, ranks, starts], [ordered, places], Extern(lower_order))
    return Order(ordered, places)
