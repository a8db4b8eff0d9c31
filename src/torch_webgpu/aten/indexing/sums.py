"""Sums through indices without atomics: points are put in the order of what they name, then summed in that order.

In deterministic mode all sums are taken so. Else only those are that :func:`pays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

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
# written once. Ordering moves 40 bytes a point, and 96 more in a cache: three accesses (a count, a start, a place) are
# scattered. The parts of sums that chunks keep are 1 / 32 of the rows (1 / 8 where these are few), moved twice.
# What it costs without atomics is worked out from these bytes, and not measured.
ATOMIC_PS, MEETING_PS = 18, 0.4
"""An element added with atomics; and for each point, on average, that meets there."""
ELEMENT_PS, POINT_PS, ROW_PS = 3, 60, 20
"""Without atomics: an element added, a point ordered, a row of the result counted."""
LAUNCHES_PS = 40_000_000
"""About ten launches more, of which each waits for the one before it."""
MARGIN = 2
"""So many times as fast as atomics must ordering be by these figures, as nobody has measured it."""
NARROWEST = 8
"""Floats of a row. Of narrower ones a thread would move less than it moves to put the row in order."""


def pays(dtype: torch.dtype, points: int, width: int, rows: int, indices: int = 1) -> bool:
    """Whether ordering ``points`` pays, to add as many rows of ``width`` elements to ``rows``, which so many index
    tensors name.
    """
    if dtype not in SUMMED or width < NARROWEST or not rows or indices > MOST_INDICES:
        return False
    atomics = points * width * (ATOMIC_PS + MEETING_PS * points / rows)
    return atomics > MARGIN * (LAUNCHES_PS + points * (width * ELEMENT_PS + POINT_PS) + rows * ROW_PS)


def add_in_order(target: torch.Tensor, terms: torch.Tensor, points: torch.Tensor, dims: int = 0) -> None:
    """Adds each of ``terms`` (n, …) to what its one of the ``points`` (n) names, which are in the order of
    :func:`order_of`: to rows of ``target``, numbered along its first ``dims`` dimensions, or with 0 to its elements.
    ``terms`` lie in another storage. Sums are taken in float32 or complex64, and rounded once.

    In deterministic mode the order of additions follows from the keys: chunks of what has one key, one point after the
    other, and then the sums of the chunks.
    """
    dims = dims or target.dim()
    if target.is_complex():
        target, terms = torch.view_as_real(target), torch.view_as_real(terms.resolve_conj())
    count, features = prod(target.shape[:dims]), prod(target.shape[dims:])
    if not len(points) or not count or not features:
        return
    rows, sums = terms.reshape(len(points), features), as_matrix(target, count, features)
    direct = sums is not None
    if sums is None:
        sums = torch.zeros((count, features), dtype=torch.float32, device=target.device)
    record_kernel("sum_by_key", [sums, rows, points], [sums], Extern(lower_sum_by_key))
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


def order_of(name: str, count: int, geometry: IndexGeometry, indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The points of ``geometry``, whose data are the numbers 1 to ``count``, in the order of those: int64 (n), with the
    number that a point names, or 0, in the low word, and its own, from 0 on, in the high one. ``name``: the operator's.

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
        ordered, places = keys.sort(stable=True)
        return (places << 32) + ordered
    counts = torch.zeros(count + 2, dtype=torch.int32, device=device)
    keys, ranks, points = counts.new_empty(n), counts.new_empty(n), counts.new_empty(n, dtype=torch.int64)
    record_kernel(name, [counts, *indices], [counts, keys, ranks], Extern(lower_rank, (geometry,)))
    starts = counts.cumsum(0, dtype=torch.int32)
    record_kernel("order_by_key", [keys, ranks, starts], [points], Extern(lower_order))
    return points
