"""Sums through indices without atomics: points are put in the order of what they name, then summed in that order.

In deterministic mode all sums are taken so. Else those are that :func:`pays`: on a GPU, all but small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from torch_webgpu.aten.dispatch.operations import record_kernel
from torch_webgpu.aten.dispatch.results import Maybe
from torch_webgpu.aten.dispatch.torch_abi import is_deterministic
from torch_webgpu.engine.layouts import spec_of
from torch_webgpu.engine.record import engine
from torch_webgpu.ir.operation import Extern
from torch_webgpu.kernels.indexing.indexed import IndexGeometry, Term, lower_read
from torch_webgpu.kernels.indexing.sum_by_key import (
    MOST_INDICES,
    lower_order,
    lower_rank,
    lower_sum_by_key,
    lower_sum_of_gathered,
    moves_in_fours,
)
from torch_webgpu.layout import contiguous_strides, overlaps_itself

SUMMED = (torch.float32, torch.float16, torch.bfloat16)

LEAST_POINTS = 1024
"""Fewer points are added with atomics.

On an H200 (us of the GPU; points that name rows evenly, by a power law, and all of them one row):

=================================  ==================  =============
points, rows                       with atomics        in order
=================================  ==================  =============
256 × 768 → 50,257                 12, 17, 474         –
1,024 × 64 → 1,000                 13, 83, 2,051       58, 59, 52
4,096 × 1 → 1,000                  14, 121, 1,919      –
4,096 × 768 → 50,257               57, 367, 28,023     72, 75, 68
65,536 × 1 → 1,000                 170, –, –           87, 100, 70
1,000,000 × 1 → 1,000,000          34, –, –            166, 335, –
1,200,000 × 128 → 170,000          2,462, –, –         362, 566, –
=================================  ==================  =============

By a power law atomics take 1.1 s for the last, and 354 ms for its first column. How points meet is not known before, so
the way is taken that never takes long.
"""


def pays(t: torch.Tensor, points: int, rows: int, indices: int = 1) -> bool:
    """Whether ``points``, which so many index tensors give, are put in order to be added to ``rows`` of ``t``: on GPUs.
    A software adapter adds two to nine times as fast with atomics.
    """
    if t.dtype not in SUMMED or not rows or indices > MOST_INDICES or points < LEAST_POINTS:
        return False
    return not engine().device(t.get_device()).target.software


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


def order_of_vector(name: str, keys: torch.Tensor, count: int, wraps: bool) -> torch.Tensor:
    """:func:`order_of` points that a vector of ``count`` keys names; ``wraps``: negative ones count from the end."""
    return order_of(name, count, of_rows(keys, count, wraps), [keys])


def add_gathered_in_order(
    name: str,
    target: torch.Tensor,
    rows: torch.Tensor,
    places: torch.Tensor,
    wraps: bool,
    factors: Maybe,
    points: torch.Tensor,
) -> None:
    """Adds ``rows[places] * factors`` to what each of the ``points`` names, without making them: float32 matrices, a
    vector of places, and factors (n, 1), in the order of :func:`order_of_vector`. ``name``: of the operator that
    gathers, for errors; ``wraps``: whether it counts negative places from the end.
    """
    inputs = [target, rows, points, places, *([] if factors is None else [factors])]
    body = Extern(lower_sum_of_gathered, (of_rows(places, len(rows), wraps),))
    record_kernel(name, inputs, [target], body)


def of_rows(indices: torch.Tensor, count: int, wraps: bool) -> IndexGeometry:
    """Of a vector of indices into ``count`` rows."""
    return IndexGeometry((len(indices),), ((0,), (indices.stride(0),)), (Term(count, 1, wraps, 0),))


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
