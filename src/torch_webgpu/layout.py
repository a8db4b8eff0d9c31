"""Shapes and strides: broadcasting, collapsing, overlap. Pure functions over tuples of ints, in elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch_webgpu.caches import memoized

Shape = tuple[int, ...]


MAX_INDEX = (1 << 32) - (1 << 24)
"""How far kernels count elements, points and 32-bit words: they do so in 32 bits, and a grid of two dimensions has
threads beyond the last element, whose numbers must not begin again at 0 either (``wgsl/launch.py``: grid_for).
"""
MAX_BYTES = (1 << 36) - (1 << 12)
"""The largest storage. An operation on more than kernels count is divided (``engine/division.py``)."""


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Row-major strides, as PyTorch computes them (a size-0 dimension counts as 1)."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(shape[d + 1], 1)
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Row-major without gaps; dimensions of size 1 may have any stride."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return prod(shape) == 0
            expected *= size
    return True


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether some order of the dimensions makes the layout contiguous: no gaps, no overlap."""
    expected = 1
    for stride, size in sorted((st, sz) for sz, st in zip(shape, strides, strict=True) if sz != 1):
        if stride != expected:
            return prod(shape) == 0
        expected *= size
    return True


def broadcast_strides(shape: Shape, strides: Shape, target: Shape) -> Shape:
    """The strides that read a tensor of ``shape`` as if expanded to ``target``: 0 along broadcast dimensions."""
    lead = len(target) - len(shape)
    own = tuple(
        0 if size == 1 and wanted != 1 else stride
        for size, stride, wanted in zip(shape, strides, target[lead:], strict=True)
    )
    return (0,) * lead + own


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last one touched, inclusive; 0 if there are none."""
    if prod(shape) == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def is_addressable(shape: Sequence[int], strides: Sequence[int], itemsize: int, start_bytes: int = 0) -> bool:
    """Whether kernels have numbers for all the points of a tensor, and for its elements, which start so many bytes
    after its allocation.
    """
    words = max(1, itemsize // 4)  # kernels may take an element apart
    return prod(shape) <= MAX_INDEX and (start_bytes // itemsize + extent(shape, strides)) * words <= MAX_INDEX


def may_overlap_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices can name one element (expanded tensors, sliding windows). Conservative."""
    if 0 in shape:
        return False
    expected = 1
    for stride, size in sorted((st, sz) for sz, st in zip(shape, strides, strict=True) if sz > 1):
        if stride < expected:
            return True
        expected = stride * (size - 1) + expected
    return False


ENUMERABLE = 1 << 20


@memoized("overlapping layouts", 4096)
def overlaps_itself(shape: Shape, strides: Shape) -> bool:
    """Whether two indices name one element. Exact, but for layouts that look it and are too large to go through."""
    if not may_overlap_itself(shape, strides):
        return False
    if prod(shape) > ENUMERABLE or any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
        return True
    touched = {0}
    for size, stride in zip(shape, strides, strict=True):
        touched = {at + k * stride for at in touched for k in range(size)}
    return len(touched) < prod(shape)


def iteration_order(shape: Shape, strides: Shape) -> tuple[int, ...]:
    """The dimensions from slowest to fastest in memory; ties (and broadcast dimensions) keep their order."""
    return tuple(sorted(range(len(shape)), key=lambda d: -strides[d] if shape[d] > 1 else 0))


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides without gaps, the dimensions from the outermost to the innermost in this order."""
    strides, length = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], length = length, length * max(1, shape[d])
    return strides


def collapse(shape: Shape, strides: Sequence[Shape], order: Sequence[int] | None = None) -> tuple[Shape, list[Shape]]:
    """The smallest iteration space that visits the same elements in the same order.

    Takes one stride tuple per argument, all for ``shape``; visits dimensions in ``order`` (default row-major), drops
    those of size 1 and merges neighbours that every argument steps through evenly. Returns at least one dimension.
    """
    dims = [d for d in (order if order is not None else range(len(shape))) if shape[d] != 1]
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d in dims:
        if sizes and all(s[-1] == arg[d] * shape[d] for s, arg in zip(steps, strides, strict=True)):
            sizes[-1] *= shape[d]
            for s, arg in zip(steps, strides, strict=True):
                s[-1] = arg[d]
            continue
        sizes.append(shape[d])
        for s, arg in zip(steps, strides, strict=True):
            s.append(arg[d])
    if not sizes:
        return (1,), [(0,) for _ in strides]
    return tuple(sizes), [tuple(s) for s in steps]


def view_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """The strides with which ``view(target)`` visits the same elements in the same order; None if none do.

    Dimensions of size 1 get stride 0.
    """
    if prod(shape) != prod(target) or prod(shape) == 0:
        return None
    # Runs of dimensions that step evenly, innermost first: how many elements, and the innermost stride.
    runs: list[list[int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= size
        else:
            runs.append([size, stride])
    view: list[int] = []
    taken, run = 1, 0
    for size in reversed(target):
        if size == 1:
            view.append(0)
            continue
        if taken == runs[run][0]:
            taken, run = 1, run + 1
        if runs[run][0] % (taken * size):
            return None
        view.append(taken * runs[run][1])
        taken *= size
    return tuple(reversed(view))
